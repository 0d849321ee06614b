//! The return types of hook methods.

use serde_json::Value;

use crate::{
    envelope::Envelope, error::BoxError, fields::Fields, prompt::Prompt, state::StatePatch,
};

/// The internal form of a hook's result. `None` means "no result".
pub type HookReturn<T> = Result<Option<T>, BoxError>;

/// The return types of a hook with the result `T`: `T`, `Option<T>`, `Result<T, E>` and `Result<Option<T>, E>`.
#[diagnostic::on_unimplemented(
    message = "this hook returns `{T}`, and `{Self}` cannot be converted to it",
    label = "return `{T}`, `Option<{T}>`, `Result<{T}>` or `Result<Option<{T}>>`"
)]
pub trait IntoHookReturn<T> {
    /// Converts the returned value to the internal form.
    fn into_hook_return(self) -> HookReturn<T>;
}

impl<T> IntoHookReturn<T> for T {
    fn into_hook_return(self) -> HookReturn<T> {
        Ok(Some(self))
    }
}

impl<T> IntoHookReturn<T> for Option<T> {
    fn into_hook_return(self) -> HookReturn<T> {
        Ok(self)
    }
}

impl<T, E: Into<BoxError>> IntoHookReturn<T> for Result<T, E> {
    fn into_hook_return(self) -> HookReturn<T> {
        self.map(Some).map_err(Into::into)
    }
}

impl<T, E: Into<BoxError>> IntoHookReturn<T> for Result<Option<T>, E> {
    fn into_hook_return(self) -> HookReturn<T> {
        self.map_err(Into::into)
    }
}

/// Implements [`IntoHookReturn`] for types that convert to a hook's result, such as `&str` for `String`. Each type can
/// also be wrapped in `Option`, `Result` or both.
macro_rules! also_accept {
    ($($from:ty => $to:ty: $convert:expr;)*) => {$(
        impl IntoHookReturn<$to> for $from {
            fn into_hook_return(self) -> HookReturn<$to> {
                Ok(Some($convert(self)))
            }
        }

        impl IntoHookReturn<$to> for Option<$from> {
            fn into_hook_return(self) -> HookReturn<$to> {
                Ok(self.map($convert))
            }
        }

        impl<E: Into<BoxError>> IntoHookReturn<$to> for Result<$from, E> {
            fn into_hook_return(self) -> HookReturn<$to> {
                self.map(|value| Some($convert(value))).map_err(Into::into)
            }
        }

        impl<E: Into<BoxError>> IntoHookReturn<$to> for Result<Option<$from>, E> {
            fn into_hook_return(self) -> HookReturn<$to> {
                self.map(|value| value.map($convert)).map_err(Into::into)
            }
        }
    )*};
}

also_accept! {
    &'static str => String: str::to_owned;
    &'static str => Prompt: Prompt::from;
    String => Prompt: Prompt::from;
    Vec<Value> => Prompt: Prompt::from;
    Envelope => Vec<Envelope>: |single| vec![single];
    Fields => StatePatch: StatePatch::from;
    Value => StatePatch: StatePatch::from;
}
