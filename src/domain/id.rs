//! Ids of sessions, runs and executions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
        #[serde(transparent)]
        #[schema(value_type = Uuid)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id; ids sort by the time they were made.
            #[must_use]
            #[expect(clippy::new_without_default, reason = "a default id would be a new one each time")]
            #[expect(clippy::disallowed_methods, reason = "the one place where ids are made")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id that a store or a caller gave as a UUID.
            #[must_use]
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID behind the id.
            #[must_use]
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::from_str(text).map(Self)
            }
        }
    )* };
}

ids! {
    /// Names a session for its caller.
    SessionId,
    /// Names one recorded exec, shell, execute or interpret.
    RunId,
    /// Names what came of one cell.
    ExecutionId,
    /// Names one start of this service, in `owner` columns.
    ReplicaId,
}

/// Who makes sandboxes elsewhere, so that those of others are never touched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Maker {
    /// The deployment: all replicas that share a store.
    pub deployment_id: Uuid,
    /// This replica of it.
    pub replica_id: Uuid,
}

/// Whose things they are. Every store method takes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tenant(String);

impl Tenant {
    /// The tenant of a service that knows only one.
    #[must_use]
    pub fn single() -> Self {
        Self("default".to_owned())
    }

    /// The tenant that a row names.
    #[must_use]
    pub fn named(name: String) -> Self {
        Self(name)
    }

    /// The tenant's name as stored.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}
