//! What can be asked for, and what is answered: the same for every way of answering.

use serde::Serialize;

use super::live::Ticket;
use super::{Desk, NewCell, NewExecute, NewInterpret, RunError};
use crate::domain::execution::{Execution, Language};
use crate::domain::id::SessionId;
use crate::domain::run::{Run, RunKind};

/// One piece of work.
pub enum Order {
    /// A cell or a command line in a session.
    Exec(SessionId, NewCell),
    /// A cell in a sandbox of its own.
    Execute(Box<NewExecute>),
    /// A question to a model.
    Interpret(Box<NewInterpret>),
}

/// What comes of an order.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Of exec, shell and execute.
    Execution(Box<Execution>),
    /// Of interpret.
    Run(Box<Run>),
}

impl Order {
    /// What the run will be.
    #[must_use]
    pub fn kind(&self) -> RunKind {
        match self {
            Self::Exec(_, cell) => match cell.language {
                Language::Python => RunKind::Exec,
                Language::Shell => RunKind::Shell,
            },
            Self::Execute(_) => RunKind::Execute,
            Self::Interpret(_) => RunKind::Interpret,
        }
    }
}

impl Desk {
    /// Refuses what can be refused before anything is touched.
    pub(super) fn check(&self, order: &Order) -> Result<(), RunError> {
        match order {
            Order::Exec(_, cell) => self.check_cell(cell),
            Order::Execute(new) => {
                self.check_cell(&new.cell)?;
                self.check_session(&new.session)
            }
            Order::Interpret(new) => self.check_interpret(new),
        }
    }

    /// Does the work. Whatever has begun is recorded when this returns.
    pub(super) async fn work(&self, ticket: &Ticket, order: Order) -> Result<Answer, RunError> {
        match order {
            Order::Exec(id, cell) => self.exec(ticket, id, cell).await.map(Answer::from),
            Order::Execute(new) => self.execute(ticket, *new).await.map(Answer::from),
            Order::Interpret(new) => self.interpret(ticket, *new).await.map(Answer::from),
        }
    }
}

impl From<Execution> for Answer {
    fn from(execution: Execution) -> Self {
        Self::Execution(Box::new(execution))
    }
}

impl From<Run> for Answer {
    fn from(run: Run) -> Self {
        Self::Run(Box::new(run))
    }
}
