//! What tells the series of a metric from each other.

use prometheus_client::encoding::EncodeLabelSet;

macro_rules! label_sets {
    ($($(#[$doc:meta])* $name:ident { $($label:ident: $kind:ty),* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub(super) struct $name { $(pub(super) $label: $kind),* }
    )* };
}

label_sets! {
    BuildLabels { version: &'static str, commit: &'static str }
    RequestLabels { method: &'static str, route: String, status: u16 }
    RouteLabels { method: &'static str, route: String }
    CodeLabels { code: &'static str }
    RunLabels { kind: &'static str, status: &'static str }
    KindLabels { kind: &'static str }
    EndLabels { provider: String, reason: &'static str }
    StateLabels { provider: String, state: &'static str }
    ProviderLabels { provider: String }
    TakeLabels { provider: String, source: &'static str }
    OperationLabels { provider: String, operation: &'static str, outcome: &'static str }
    TurnLabels { model: String, outcome: &'static str }
    TokenLabels { model: String, direction: &'static str }
    QueryLabels { operation: &'static str, outcome: &'static str }
}
