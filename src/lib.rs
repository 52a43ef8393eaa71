//! A code interpreter for language models, as a service.

pub mod access;
pub mod api;
pub mod app;
pub mod config;
pub mod domain;
pub mod interpreter;
pub mod llm;
pub mod net;
pub mod runs;
pub mod sandbox;
pub mod sessions;
pub mod store;
pub mod telemetry;
