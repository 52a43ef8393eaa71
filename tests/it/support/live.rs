//! The smoke test for real clouds, which the doubles stand for here.

use super::server::program;

/// Whether it is content, and what it says.
pub fn smoke(provider: &str, environment: &[(&str, &str)]) -> (bool, String) {
    let file = std::env::var_os("INTERPRETERD_TEST_LIVE")
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/smoke.py").into());
    #[expect(clippy::disallowed_methods, reason = "the smoke test is a program")]
    let mut command = std::process::Command::new("/usr/bin/python3");
    command.arg(file).arg("--program").arg(program()).args(["--provider", provider]).env_clear();
    let home = std::env::var_os("HOME").unwrap();
    let output = command.env("PATH", "/usr/bin:/bin").env("HOME", home);
    let output = output.envs(environment.iter().copied()).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&told).into_owned())
}
