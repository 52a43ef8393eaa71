//! Named points where a test can end the process, to see what is there after a restart.

/// Ends the process at once when the environment names this point. Does nothing in release builds.
pub fn point(name: &str) {
    if cfg!(debug_assertions)
        && std::env::var("INTERPRETERD_TEST_CRASH_AT").is_ok_and(|point| point == name)
    {
        std::process::abort();
    }
}
