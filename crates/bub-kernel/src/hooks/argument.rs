//! The compile-time check of the argument types in a hook method.

use super::{HookPoint, Next};
use crate::ids::SessionId;

/// An argument of a hook that a method can declare with the type `T`: the argument's own type, or `&str` for a
/// [`SessionId`].
#[diagnostic::on_unimplemented(
    message = "this hook argument has the type `{Self}`, not `{T}`",
    label = "use `{Self}`"
)]
pub trait AcceptedAs<T> {
    /// Returns the argument as `T`.
    fn into_accepted(self) -> T;
}

impl<T> AcceptedAs<T> for T {
    fn into_accepted(self) -> T {
        self
    }
}

impl<'a> AcceptedAs<&'a str> for &'a SessionId {
    fn into_accepted(self) -> &'a str {
        self
    }
}

/// Converts an argument to the type that the hook method declares.
pub fn convert_argument<A: AcceptedAs<T>, T>(argument: A) -> T {
    argument.into_accepted()
}

/// A type that no hook method can declare. It only improves a compile error. Because each argument type has a second
/// impl of [`AcceptedAs`], the compiler reports a wrong type with the message of that trait, not as an error in the
/// generated code.
#[derive(Debug)]
pub enum UnsupportedType {}

macro_rules! unsupported {
    ($(($($parameters:tt)*) $ty:ty;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($parameters)*> AcceptedAs<UnsupportedType> for $ty {
            fn into_accepted(self) -> UnsupportedType {
                unreachable!("`UnsupportedType` has no values")
            }
        }
    )*};
}

unsupported! {
    ('a, T: ?Sized) &'a T;
    (T) Option<T>;
    ('a, P: HookPoint) Next<'a, P>;
}
