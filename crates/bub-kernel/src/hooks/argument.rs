//! The check that an implementation takes an argument as what it is.

use super::{HookPoint, Next};
use crate::ids::SessionId;

/// The types as which an argument may be taken: its own.
#[diagnostic::on_unimplemented(
    message = "this argument of the hook is `{Self}`, and cannot be taken as `{T}`",
    label = "write `{Self}`"
)]
pub trait TakenAs<T> {
    /// The argument.
    fn given(self) -> T;
}

impl<T> TakenAs<T> for T {
    fn given(self) -> T {
        self
    }
}

impl<'a> TakenAs<&'a str> for &'a SessionId {
    fn given(self) -> &'a str {
        self
    }
}

/// Passes an argument on, as the type the implementation names.
pub fn given<A: TakenAs<T>, T>(argument: A) -> T {
    argument.given()
}

/// As what no argument is taken. With it the compiler has more than one type to consider, so that it
/// reports a wrong one in the words above and not as a mistake in the generated code.
#[derive(Debug)]
pub enum Nothing {}

macro_rules! never_taken {
    ($(($($parameters:tt)*) $ty:ty;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($parameters)*> TakenAs<Nothing> for $ty {
            fn given(self) -> Nothing {
                unreachable!("nothing is ever taken as nothing")
            }
        }
    )*};
}

never_taken! {
    ('a, T: ?Sized) &'a T;
    (T) Option<T>;
    ('a, P: HookPoint) Next<'a, P>;
}
