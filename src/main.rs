//! The program: reads what is asked for, does it, says how it went.

use std::process::ExitCode;

use interpreterd::config::{self, Action, GuestAction};
use interpreterd::domain::coded::chain;
use interpreterd::sandbox::local;
use interpreterd::{api, app};

fn main() -> ExitCode {
    // before anything else: the warden must have one thread
    if std::env::args_os().nth(1).is_some_and(|argument| argument == local::WARDEN_MODE) {
        local::run_warden();
    }
    match act() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("interpreterd: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn act() -> Result<ExitCode, Box<dyn std::error::Error>> {
    match config::read()?.action {
        Action::Serve(settings) => app::serve(&settings)?,
        Action::Check(settings) => {
            return Ok(if app::check(&settings)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Action::Guest(GuestAction::Install(settings)) => {
            local::install(&settings)?;
        }
        Action::Openapi => print!("{}", api::document()),
        Action::Settings => print!("{}", config::table()),
    }
    Ok(ExitCode::SUCCESS)
}
