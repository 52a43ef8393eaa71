//! A client of one MCP server: connected, asked, within limits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, JsonObject, PingRequest,
    ServerResult,
};
use rmcp::service::{ClientInitializeError, PeerRequestOptions, RunningService};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{IntoTransport, StreamableHttpClientTransport};
use rmcp::{RoleClient, ServiceError, ServiceExt};
use secrecy::{ExposeSecret, SecretString};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::error::{CallError, PydanticError};
use super::hearing::Listener;
use super::lines::{Lines, MAX_MESSAGE_BYTES};
use super::process::{Plan, Process, Started, Words};
use crate::domain::reason::Reason;
use crate::net;

/// For the list of tools.
const LIST_LIMIT: Duration = Duration::from_secs(10);
/// How long the last words of a process that has ended may take.
const WORDS_LIMIT: Duration = Duration::from_secs(1);
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);
const RUN: &str = "run_python_code";
/// Codes of JSON-RPC, of MCP and of our server that say that nothing was begun: no such method, bad
/// arguments, too many calls wait, Python did not start.
const UNDONE: [i32; 4] = [-32601, -32602, -32000, -32001];

/// A connection to a server.
pub(super) struct Client {
    service: RunningService<RoleClient, Listener>,
    pub(super) listener: Listener,
    tools: BTreeSet<String>,
    /// How many messages have come since the last call.
    messages: Arc<AtomicU32>,
    /// Over HTTP a call that failed may have been answered: only pipes say that nothing was sent.
    is_remote: bool,
    /// What the server's process says besides; of a server elsewhere nothing is heard.
    words: Arc<Words>,
}

impl Client {
    /// Starts a server and shakes hands with it.
    pub(super) async fn start(
        plan: Plan,
        limit: Duration,
    ) -> Result<(Self, Process), PydanticError> {
        let started = Process::start(plan).await.map_err(PydanticError::Start)?;
        let Started { process, stdin, stdout } = started;
        let words = Arc::clone(process.words());
        match Self::on_pipes(stdin, stdout, &words, limit).await {
            Ok(client) => Ok((client, process)),
            // why it ended stands in its last words, which may come after its end
            Err(PydanticError::Handshake(said)) => {
                process.end().await;
                process.heard_within(WORDS_LIMIT).await;
                let last = words.last();
                let is_silent = last == Reason::default();
                Err(PydanticError::Handshake(if is_silent { said } else { last }))
            }
            Err(error) => Err(error),
        }
    }

    async fn on_pipes(
        stdin: ChildStdin,
        stdout: ChildStdout,
        words: &Arc<Words>,
        limit: Duration,
    ) -> Result<Self, PydanticError> {
        let unasked = Arc::default();
        let lines = Lines::new(stdout, Arc::clone(words), Arc::clone(&unasked));
        let transport =
            AsyncRwTransport::new_client(lines, stdin).with_max_line_length(MAX_MESSAGE_BYTES);
        Self::connect(transport, (Arc::clone(words), unasked), limit, false).await
    }

    /// Shakes hands with a server that answers at a URL.
    pub(super) async fn at_url(
        url: &str,
        token: Option<&SecretString>,
        limit: Duration,
    ) -> Result<Self, PydanticError> {
        let mut config = StreamableHttpClientTransportConfig::with_uri(url);
        config.auth_header = token.map(|token| token.expose_secret().to_owned());
        config.max_sse_event_size = MAX_MESSAGE_BYTES;
        config.max_json_response_size = MAX_MESSAGE_BYTES;
        let http = net::planned(&net::ClientPlan::default())?;
        let transport = StreamableHttpClientTransport::with_client(http, config);
        Self::connect(transport, (Arc::default(), Arc::default()), limit, true).await
    }

    async fn connect<T, E, A>(
        transport: T,
        (words, messages): (Arc<Words>, Arc<AtomicU32>),
        limit: Duration,
        is_remote: bool,
    ) -> Result<Self, PydanticError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let listener = Listener::default();
        let shaken = timeout(limit, Box::pin(listener.clone().serve(transport))).await;
        let service = match shaken {
            Ok(Ok(service)) => service,
            Ok(Err(error)) => {
                let said = words.last();
                let said = if said == Reason::default() { why(&error) } else { said };
                return Err(PydanticError::Handshake(said));
            }
            // what it says in place of the protocol says why
            Err(_) if words.last() != Reason::default() => {
                return Err(PydanticError::Handshake(words.last()));
            }
            Err(_) => return Err(CallError::TooSlow.into()),
        };
        let mut client =
            Self { service, listener, tools: BTreeSet::new(), is_remote, messages, words };
        let listed = timeout(LIST_LIMIT, client.service.list_tools(None)).await;
        let listed =
            listed.map_err(|_| CallError::TooSlow)?.map_err(|error| client.failed(error))?;
        client.tools = listed.tools.into_iter().map(|tool| tool.name.into_owned()).collect();
        if client.has(RUN) { Ok(client) } else { Err(PydanticError::NoTool) }
    }

    /// Whether the server has a tool of this name.
    pub(super) fn has(&self, tool: &str) -> bool {
        self.tools.contains(tool)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.service.is_transport_closed()
    }

    /// Whether the server answers at all, which one of ours does also while code runs.
    pub(super) async fn answers(&self, limit: Duration) -> bool {
        let ping = self.service.send_request(ClientRequest::PingRequest(PingRequest::default()));
        matches!(timeout(limit, ping).await, Ok(Ok(_)))
    }

    /// Runs Python code.
    pub(super) async fn run(
        &self,
        arguments: JsonObject,
        limit: Duration,
    ) -> Result<CallToolResult, CallError> {
        self.call(RUN, arguments, limit).await
    }

    /// Calls a tool, whose progress is told to who listens.
    pub(super) async fn call(
        &self,
        tool: &'static str,
        arguments: JsonObject,
        limit: Duration,
    ) -> Result<CallToolResult, CallError> {
        self.messages.store(0, Ordering::SeqCst);
        let request = CallToolRequestParams::new(tool).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(request));
        let options = PeerRequestOptions::with_timeout(limit);
        let sent = timeout(limit, self.service.send_cancellable_request(request, options)).await;
        let handle = sent.map_err(|_| CallError::TooSlow)?.map_err(|_| CallError::NotSent)?;
        if tool == RUN {
            self.listener.expect(handle.progress_token.clone());
        }
        // at its limit rmcp says so to the server, and waits for ever where that reads nothing
        let answered = timeout(limit + GOODBYE_LIMIT, handle.await_response()).await;
        match answered.map_err(|_| CallError::TooSlow)? {
            Ok(ServerResult::CallToolResult(result)) => Ok(result),
            Ok(_) => Err(CallError::BadAnswer("the result of a tool")),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: ServiceError) -> CallError {
        match error {
            ServiceError::McpError(told) => {
                let reason = Reason::new(&told.message);
                let is_undone = UNDONE.contains(&told.code.0);
                if is_undone { CallError::Refused(reason) } else { CallError::Failed(reason) }
            }
            ServiceError::TransportSend(_) if !self.is_remote => CallError::NotSent,
            ServiceError::Timeout { .. } => CallError::TooSlow,
            ServiceError::UnexpectedResponse => CallError::BadAnswer("what MCP says"),
            // others belong to what is not asked for here; the enum is open
            _ => CallError::Closed(self.words.last()),
        }
    }
}

/// What a failure comes from: rmcp's own words are of its types.
fn why(error: &ClientInitializeError) -> Reason {
    let error: &dyn std::error::Error = match error {
        ClientInitializeError::TransportError { error, .. } => error.error.as_ref(),
        other => other,
    };
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    Reason::new(&text)
}

/// The text that a tool gives, where that is one block.
pub(super) fn text(result: &CallToolResult) -> Option<&str> {
    result.content.first()?.as_text().map(|text| text.text.as_str())
}
