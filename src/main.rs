//! The program: reads what is asked for, does it, says how it went.

use std::process::ExitCode;

use interpreterd::config::{self, Action, GuestAction, GuestKind};
use interpreterd::domain::coded::chain;
use interpreterd::sandbox::{local, pydantic};
use interpreterd::{api, app, telemetry};

fn main() -> ExitCode {
    // before anything else: these become other processes, and must have one thread
    let mode = std::env::args_os().nth(1).unwrap_or_default();
    if mode == local::WARDEN_MODE {
        local::run_warden();
    }
    if mode == pydantic::CAGE_MODE {
        return pydantic::run_cage();
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
        Action::Healthcheck(settings) => {
            println!("{}", app::healthcheck(settings.server.listen)?);
        }
        Action::Migrate(settings) => app::migrate(&settings)?,
        Action::Guest(GuestAction::Install(settings)) => match settings.provider {
            GuestKind::Local => drop(local::install(&settings.guest)?),
            GuestKind::Pydantic => pydantic::install(&settings)?,
        },
        Action::Openapi => print!("{}", api::document()),
        Action::Metrics => print!("{}", telemetry::table::table()),
        Action::Settings => print!("{}", config::table()),
    }
    Ok(ExitCode::SUCCESS)
}
