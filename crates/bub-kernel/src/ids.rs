//! Identifiers with distinct types, so that they cannot be confused.

use std::{borrow::Borrow, fmt, ops::Deref, sync::Arc};

use serde::{Deserialize, Serialize};

macro_rules! string_id {
    ($($(#[doc = $doc:literal])+ $name:ident;)*) => {$(
        $(#[doc = $doc])+
        ///
        /// Cloning is cheap. The id dereferences to `str` and is serialized as a plain string.
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Creates an id from its text.
            pub fn new(id: impl Into<Arc<str>>) -> Self {
                Self(id.into())
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self(Arc::from(id))
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                Self(Arc::from(id))
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.as_str().to_owned()
            }
        }

        impl From<&$name> for String {
            fn from(id: &$name) -> Self {
                id.as_str().to_owned()
            }
        }

        impl From<&$name> for serde_json::Value {
            fn from(id: &$name) -> Self {
                id.as_str().into()
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }

        impl PartialEq<String> for $name {
            fn eq(&self, other: &String) -> bool {
                &*self.0 == other.as_str()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    )*};
}

string_id! {
    /// The id of a session: a conversation with its own tape.
    SessionId;
    /// The id of a turn. It is the `run_id` in the `meta` of the turn's tape entries.
    TurnId;
    /// The id of an accepted inbound message. All attempts to process the message have the same id.
    MessageId;
    /// The id of a reply. All attempts to deliver the reply have the same id.
    ReplyId;
}

impl SessionId {
    /// Prefix of temporary sessions. Their tapes are kept in memory only.
    pub const TEMP_PREFIX: &str = "temp/";

    /// Returns whether the session's tape is kept in memory only.
    pub fn is_temporary(&self) -> bool {
        self.starts_with(Self::TEMP_PREFIX)
    }
}

impl TurnId {
    /// Creates a new, unique id.
    pub fn generate() -> Self {
        Self::from(bub_tape::new_run_id())
    }
}
