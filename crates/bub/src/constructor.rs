//! What [`App::plugin`](crate::App::plugin) accepts.

use bub_kernel::{IntoPlugin, Plugin, PluginContext};
use bub_settings::{FromSettings, Section};

/// A plugin, or a function that creates it.
///
/// The function takes a struct of settings (see [`FromSettings`]), a [`PluginContext`], or both in this order. It
/// returns the plugin, or a `Result` with it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a plugin nor a function that creates one",
    label = "expected a plugin, or a function that returns one",
    note = "a plugin has a block with `#[hooks]` or `#[tools(plugin)]`",
    note = "a function takes a struct with `#[derive(Settings)]`, a `&PluginContext<'_>`, or both in this order; a \
            closure needs the types of its arguments: `|settings: MySettings| …`"
)]
pub trait PluginConstructor<Arguments>: Send + 'static {
    /// The result of the function.
    type Output: IntoPlugin;

    /// Returns the section of the settings that the function takes.
    fn section() -> Option<Section> {
        None
    }

    /// Creates the plugin.
    fn create(self, context: &PluginContext<'_>) -> Self::Output;
}

impl<P: Plugin> PluginConstructor<()> for P {
    type Output = P;

    fn create(self, _: &PluginContext<'_>) -> P {
        self
    }
}

impl<F, P: IntoPlugin> PluginConstructor<&PluginContext<'_>> for F
where
    F: FnOnce(&PluginContext<'_>) -> P + Send + 'static,
{
    type Output = P;

    fn create(self, context: &PluginContext<'_>) -> P {
        self(context)
    }
}

impl<F, S: FromSettings, P: IntoPlugin> PluginConstructor<(S,)> for F
where
    F: FnOnce(S) -> P + Send + 'static,
{
    type Output = P;

    fn section() -> Option<Section> {
        Some(S::section())
    }

    fn create(self, context: &PluginContext<'_>) -> P {
        self(S::from_settings(context.settings))
    }
}

impl<F, S: FromSettings, P: IntoPlugin> PluginConstructor<(S, &PluginContext<'_>)> for F
where
    F: FnOnce(S, &PluginContext<'_>) -> P + Send + 'static,
{
    type Output = P;

    fn section() -> Option<Section> {
        Some(S::section())
    }

    fn create(self, context: &PluginContext<'_>) -> P {
        self(S::from_settings(context.settings), context)
    }
}
