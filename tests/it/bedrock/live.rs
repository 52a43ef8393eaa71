//! The smoke test for the real AWS says of the double what it would say of that.

use crate::support::agentcore::{AgentCore, SECRET};
use crate::support::live::smoke;

#[test]
fn the_smoke_test_passes_against_the_double_and_fails_where_something_is_wrong() {
    let aws = AgentCore::start(&[]);
    let with = |secret| {
        [
            ("AWS_REGION", "us-west-2"),
            ("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", aws.url()),
            ("AWS_ACCESS_KEY_ID", "AKIDOFTHETESTS"),
            ("AWS_SECRET_ACCESS_KEY", secret),
        ]
    };
    let (good, told) = smoke("bedrock", &with(SECRET));
    assert!(good && told.contains("the provider bedrock works with this cloud"), "{told}");
    let (good, told) = smoke("bedrock", &with("another-secret"));
    assert!(!good, "{told}");
    let (good, told) = smoke("bedrock", &[]);
    assert!(good && told.starts_with("not tried"), "{told}");
}
