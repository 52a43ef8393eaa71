//! One suite a port, which every implementation passes.

mod sandbox;
mod store;
