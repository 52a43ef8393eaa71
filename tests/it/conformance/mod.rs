//! One suite a port, which every implementation passes.

mod store;
