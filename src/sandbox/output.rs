//! The one limit that sandboxes elsewhere let a session choose: how much output is kept. Pure.

use super::SandboxError;
use crate::domain::limits::{Limits, LimitsRequest};

const LEAST_BYTES: u64 = 1024;

/// The limits of a session in a sandbox whose size somebody else decides.
///
/// # Errors
/// [`SandboxError`] where another limit is asked for, or more output than may be kept.
pub(super) fn granted(request: &LimitsRequest, most: u64) -> Result<Limits, SandboxError> {
    let alone = LimitsRequest { output_bytes: request.output_bytes, ..Default::default() };
    if *request != alone {
        return Err(SandboxError::Unsupported(
            "its sandboxes are as large as they come; only limits.output_bytes can be set",
        ));
    }
    let output_bytes = request.output_bytes.unwrap_or(most);
    if !(LEAST_BYTES..=most).contains(&output_bytes) {
        let limit = "/limits/output_bytes";
        return Err(SandboxError::LimitOutOfRange { limit, least: LEAST_BYTES, most });
    }
    Ok(Limits { output_bytes: Some(output_bytes), ..Limits::default() })
}
