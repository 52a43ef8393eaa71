//! All integration tests, one binary: the real service over HTTP.
#![expect(clippy::unwrap_used, reason = "tests say what they do in their names")]

mod abuse;
mod access;
mod backup;
#[cfg(feature = "bedrock")]
mod bedrock;
mod blobs;
mod cases;
mod cases_model;
mod clients;
mod conformance;
mod contract;
mod conversations;
mod crashes;
mod dashboards;
mod deployment;
mod e2b;
mod examples;
mod exec;
mod execute;
mod faults;
mod files;
mod guest;
mod health;
mod idempotency;
mod interpret;
mod isolation;
mod layers;
mod leaks;
mod leases;
mod levels;
mod lifecycle;
mod limits;
mod metrics;
mod openapi;
mod outages;
mod packages;
mod packages_starting;
mod pool;
mod problems;
mod pydantic;
mod questions;
mod readme;
mod replicas;
mod runs;
mod secrets;
mod sessions;
mod slow;
mod strays;
mod streams;
mod support;
#[cfg(feature = "otlp")]
mod traces;
mod wires;
#[cfg(not(feature = "bedrock"))]
mod without_bedrock;
mod workloads;
mod workloads_absent;
mod workloads_data;
mod workloads_magics;
mod workloads_plots;
mod workloads_programs;
