//! The smoke test for the real cloud says of the double what it would say of that.

use crate::support::double::{Double, KEY};
use crate::support::server::program;

fn smoke(environment: &[(&str, &str)]) -> (bool, String) {
    let file = std::env::var_os("INTERPRETERD_TEST_LIVE")
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/e2b.py").into());
    #[expect(clippy::disallowed_methods, reason = "the smoke test is a program")]
    let mut command = std::process::Command::new("/usr/bin/python3");
    command.arg(file).arg("--program").arg(program()).env_clear();
    let home = std::env::var_os("HOME").unwrap();
    let output = command.env("PATH", "/usr/bin:/bin").env("HOME", home);
    let output = output.envs(environment.iter().copied()).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&told).into_owned())
}

#[test]
fn the_smoke_test_passes_against_the_double_and_fails_where_something_is_wrong() {
    let double = Double::start(&[]);
    let place = [("E2B_API_URL", double.url.as_str()), ("E2B_SANDBOX_URL", double.url.as_str())];
    let with = |key| [place.as_slice(), &[("E2B_API_KEY", key)]].concat();
    let (good, told) = smoke(&with(KEY));
    assert!(good && told.contains("the provider e2b works with this cloud"), "{told}");
    let (good, told) = smoke(&with("another-key"));
    assert!(!good, "{told}");
    let (good, told) = smoke(&place);
    assert!(good && told.starts_with("not tried"), "{told}");
}
