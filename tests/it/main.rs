//! All integration tests, one binary: the real service over HTTP.
#![expect(clippy::unwrap_used, reason = "tests say what they do in their names")]

mod abuse;
mod access;
mod cases;
mod conformance;
mod contract;
mod crashes;
mod exec;
mod execute;
mod files;
mod guest;
mod idempotency;
mod interpret;
mod isolation;
mod layers;
mod leaks;
mod leases;
mod levels;
mod lifecycle;
mod limits;
mod openapi;
mod packages;
mod pool;
mod problems;
mod readme;
mod runs;
mod sessions;
mod slow;
mod streams;
mod support;
mod workloads;
mod workloads_absent;
mod workloads_data;
mod workloads_magics;
mod workloads_plots;
mod workloads_programs;
