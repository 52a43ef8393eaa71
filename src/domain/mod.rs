//! The words of the service as types: no I/O, no HTTP, no SQL.

pub mod build;
pub mod claim;
pub mod coded;
pub mod crash;
pub mod event;
pub mod execution;
pub mod file;
pub mod id;
pub mod limits;
pub mod list;
pub mod package;
pub mod provider;
pub mod reason;
pub mod run;
pub mod session;
pub mod weight;
