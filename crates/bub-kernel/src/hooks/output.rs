//! The shapes in which an implementation may return its result.

use serde_json::Value;

use crate::{
    envelope::Envelope, error::BoxError, fields::Fields, prompt::Prompt, state::StatePatch,
};

/// A result in its one internal form; `None` means "no opinion".
pub type HookReturn<T> = Result<Option<T>, BoxError>;

/// Return types a hook of result `T` accepts: `T`, `Option<T>`, `Result<T, E>`, `Result<Option<T>, E>`.
#[diagnostic::on_unimplemented(
    message = "this hook yields `{T}`, and `{Self}` cannot be turned into that",
    label = "return `{T}`, `Option<{T}>`, `Result<{T}>` or `Result<Option<{T}>>`"
)]
pub trait IntoHookResult<T> {
    /// Converts it.
    fn into_hook_result(self) -> HookReturn<T>;
}

impl<T> IntoHookResult<T> for T {
    fn into_hook_result(self) -> HookReturn<T> {
        Ok(Some(self))
    }
}

impl<T> IntoHookResult<T> for Option<T> {
    fn into_hook_result(self) -> HookReturn<T> {
        Ok(self)
    }
}

impl<T, E: Into<BoxError>> IntoHookResult<T> for Result<T, E> {
    fn into_hook_result(self) -> HookReturn<T> {
        self.map(Some).map_err(Into::into)
    }
}

impl<T, E: Into<BoxError>> IntoHookResult<T> for Result<Option<T>, E> {
    fn into_hook_result(self) -> HookReturn<T> {
        self.map_err(Into::into)
    }
}

/// Lets a hook return a handier type than its own, in each of the four shapes.
macro_rules! also_accept {
    ($($from:ty => $to:ty: $convert:expr;)*) => {$(
        impl IntoHookResult<$to> for $from {
            fn into_hook_result(self) -> HookReturn<$to> {
                Ok(Some($convert(self)))
            }
        }

        impl IntoHookResult<$to> for Option<$from> {
            fn into_hook_result(self) -> HookReturn<$to> {
                Ok(self.map($convert))
            }
        }

        impl<E: Into<BoxError>> IntoHookResult<$to> for Result<$from, E> {
            fn into_hook_result(self) -> HookReturn<$to> {
                self.map(|value| Some($convert(value))).map_err(Into::into)
            }
        }

        impl<E: Into<BoxError>> IntoHookResult<$to> for Result<Option<$from>, E> {
            fn into_hook_result(self) -> HookReturn<$to> {
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
