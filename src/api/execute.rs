//! Execute: a cell in a sandbox of its own.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use utoipa::ToSchema;

use super::ApiState;
use super::extract::{Json, Tenant};
use super::problem::{Bodied, Guarded, Making, Problem};
use super::respond::{Ways, respond};
use super::seconds::Seconds;
use crate::domain::execution::{Execution, Language};
use crate::domain::file::FilePath;
use crate::domain::limits::LimitsRequest;
use crate::domain::package::PackageSet;
use crate::runs::spool::{Content, NewFile};
use crate::runs::{NewCell, NewExecute, Order};
use crate::sessions::NewSession;

/// Python code to run once in a sandbox of its own.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecuteRequest {
    /// Python code, 1 MiB at most.
    code: String,
    /// Files that lie ready.
    #[serde(default)]
    files: Vec<FileRequest>,
    /// The provider entry; the default one when absent.
    provider: Option<String>,
    /// Packages that must be there besides those that `/v1/providers` lists: names, with versions
    /// where they matter, as PEP 508 writes them (`polars`, `duckdb>=1,<2`); 64 at most.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 64)]
    packages: PackageSet,
    /// Environment; never stored.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Standard input; never stored.
    stdin: Option<String>,
    /// Lower limits than the configured ones.
    #[serde(default)]
    limits: LimitsRequest,
    /// How long it may run, in seconds.
    #[schema(value_type = Option<f64>)]
    timeout_seconds: Option<Seconds>,
    /// What to put into the answer besides.
    #[serde(default)]
    include: Vec<Include>,
}

/// A file inside a JSON body.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileRequest {
    /// Where it is to lie, relative to the files folder.
    name: FilePath,
    /// What is in it.
    content_base64: Base64,
}

/// What can be put into an answer besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Include {
    /// The content of output files of 1 MiB at most.
    Content,
}

/// Bytes as base64, RFC 4648 section 4.
#[derive(ToSchema)]
#[schema(value_type = String, format = Byte)]
struct Base64(Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

impl FileRequest {
    pub(super) fn into_new(self) -> NewFile {
        NewFile { path: self.name, content: Content::Whole(self.content_base64.0.into()) }
    }
}

impl ExecuteRequest {
    fn into_new(self) -> NewExecute {
        NewExecute {
            cell: NewCell {
                code: self.code,
                language: Language::Python,
                timeout: self.timeout_seconds.map(|seconds| seconds.0),
                env: self.env,
                stdin: self.stdin,
                keep_files: true,
            },
            session: NewSession {
                provider: self.provider,
                packages: self.packages,
                limits: self.limits,
                ..NewSession::default()
            },
            files: self.files.into_iter().map(FileRequest::into_new).collect(),
            include_content: self.include.contains(&Include::Content),
        }
    }
}

/// Run Python in a sandbox of its own, ended afterwards. The files that it makes are kept.
#[utoipa::path(post, path = "/v1/execute", tag = "runs", request_body = ExecuteRequest,
    responses((status = 200, description = "What came of it, also when the code failed or ran out of time", body = Execution), Guarded, Bodied, Making, Ways,
        (status = 409, description = "The provider cannot do what was asked", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn execute(
    State(state): State<ApiState>,
    Tenant(tenant): Tenant,
    headers: HeaderMap,
    Json(request): Json<ExecuteRequest>,
) -> Result<Response, Problem> {
    respond(&state, &tenant, &headers, "/v1/execute", Order::Execute(Box::new(request.into_new())))
        .await
}
