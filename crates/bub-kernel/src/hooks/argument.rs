//! The check that an implementation takes an argument as what it is.

use super::{HookPoint, Next};
use crate::ids::SessionId;

/// The types as which an argument may be taken: its own.
#[diagnostic::on_unimplemented(
    message = "this argument of the hook is `{Self}`, and cannot be taken as `{T}`",
    label = "write `{Self}`"
)]
pub trait AcceptedAs<T> {
    /// The argument.
    fn pass(self) -> T;
}

impl<T> AcceptedAs<T> for T {
    fn pass(self) -> T {
        self
    }
}

impl<'a> AcceptedAs<&'a str> for &'a SessionId {
    fn pass(self) -> &'a str {
        self
    }
}

/// Passes an argument on, as the type the implementation names.
pub fn pass<A: AcceptedAs<T>, T>(argument: A) -> T {
    argument.pass()
}

/// As what no argument is taken. With it the compiler has more than one type to consider, so that it
/// reports a wrong one in the words above and not as a mistake in the generated code.
#[derive(Debug)]
pub enum UnsupportedType {}

macro_rules! never_taken {
    ($(($($parameters:tt)*) $ty:ty;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($parameters)*> AcceptedAs<UnsupportedType> for $ty {
            fn pass(self) -> UnsupportedType {
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
