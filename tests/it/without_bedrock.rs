//! The program without AWS's client: the cargo feature `bedrock` is off.

use crate::support::server::{command, open_folder};

#[test]
fn an_entry_that_needs_the_feature_is_refused_by_name() {
    let folder = open_folder();
    let mut command = command();
    command.arg("serve").env("INTERPRETERD_BEDROCK_REGION", "us-west-2");
    let output = command.env("INTERPRETERD_DATA_DIR", folder.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let expected = "the provider entry bedrock needs what this program was built without";
    assert!(!output.status.success() && told.contains(expected), "{told}");
}
