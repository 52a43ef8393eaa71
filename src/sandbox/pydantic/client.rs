//! A client of one MCP server: connected, asked, within limits.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, JsonObject, ServerResult,
};
use rmcp::service::{PeerRequestOptions, RunningService};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{IntoTransport, StreamableHttpClientTransport};
use rmcp::{RoleClient, ServiceError, ServiceExt};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::error::{CallError, PydanticError};
use super::hearing::Listener;
use super::process::Words;
use crate::domain::reason::Reason;
use crate::net;

/// The longest message of a server: outputs, both streams and the same once more as text.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
const MAX_WORDS_BYTES: usize = 200;
/// For the list of tools.
const LIST_LIMIT: Duration = Duration::from_secs(10);
const RUN: &str = "run_python_code";

/// A connection to a server.
pub(super) struct Client {
    service: RunningService<RoleClient, Listener>,
    pub(super) listener: Listener,
    tools: BTreeSet<String>,
    /// What the server's process says besides; of a server elsewhere nothing is heard.
    words: Arc<Words>,
}

impl Client {
    /// Shakes hands with a server at the other end of pipes.
    pub(super) async fn on_pipes(
        stdin: ChildStdin,
        stdout: ChildStdout,
        words: &Arc<Words>,
        limit: Duration,
    ) -> Result<Self, PydanticError> {
        let lines = Lines::new(stdout, Arc::clone(words));
        let transport =
            AsyncRwTransport::new_client(lines, stdin).with_max_line_length(MAX_MESSAGE_BYTES);
        Self::connect(transport, Arc::clone(words), limit).await
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
        Self::connect(transport, Arc::default(), limit).await
    }

    async fn connect<T, E, A>(
        transport: T,
        words: Arc<Words>,
        limit: Duration,
    ) -> Result<Self, PydanticError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let listener = Listener::default();
        let shaken = timeout(limit, Box::pin(listener.clone().serve(transport))).await;
        let service = match shaken {
            Ok(Ok(service)) => service,
            Ok(Err(_)) => return Err(PydanticError::Handshake(words.last())),
            Err(_) => return Err(CallError::TooSlow.into()),
        };
        let mut client = Self { service, listener, tools: BTreeSet::new(), words };
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
        self.service.is_closed()
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
        let request = CallToolRequestParams::new(tool).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(request));
        let options = PeerRequestOptions::with_timeout(limit);
        // a server that reads nothing fills the pipe
        let sent = timeout(limit, self.service.send_cancellable_request(request, options)).await;
        let handle = sent.map_err(|_| CallError::TooSlow)?.map_err(|error| self.failed(error))?;
        if tool == RUN {
            self.listener.expect(handle.progress_token.clone());
        }
        match handle.await_response().await {
            Ok(ServerResult::CallToolResult(result)) => Ok(result),
            Ok(_) => Err(CallError::BadAnswer("the result of a tool")),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: ServiceError) -> CallError {
        match error {
            ServiceError::McpError(told) => CallError::Refused(Reason::new(&told.message)),
            ServiceError::TransportSend(_) => CallError::NotSent,
            ServiceError::Timeout { .. } => CallError::TooSlow,
            ServiceError::UnexpectedResponse => CallError::BadAnswer("what MCP says"),
            // others belong to what is not asked for here; the enum is open
            _ => CallError::Closed(self.words.last()),
        }
    }
}

/// The result that a tool gives besides its text.
pub(super) fn structured(result: CallToolResult) -> Option<Value> {
    result.structured_content
}

/// The text that a tool gives, where that is one block.
pub(super) fn text(result: &CallToolResult) -> Option<&str> {
    result.content.first()?.as_text().map(|text| text.text.as_str())
}

/// A server's stdout. What is not JSON is noted: installers say such things before the server speaks.
/// A message that is too long ends the connection, for its answer would be waited for in vain.
struct Lines {
    stdout: ChildStdout,
    words: Arc<Words>,
    /// Bytes of the line so far.
    length: usize,
    /// The beginning of a line that is no message.
    stray: Option<Vec<u8>>,
}

impl Lines {
    fn new(stdout: ChildStdout, words: Arc<Words>) -> Self {
        Self { stdout, words, length: 0, stray: None }
    }

    /// False once a line is too long.
    fn follow(&mut self, bytes: &[u8]) -> bool {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.length == 0 && !matches!(piece[0], b'{' | b'[' | b'\n') {
                self.stray = Some(Vec::new());
            }
            if let Some(stray) = &mut self.stray {
                let room = MAX_WORDS_BYTES.saturating_sub(stray.len());
                stray.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            self.length += piece.len();
            if self.length > MAX_MESSAGE_BYTES {
                self.words.add("a message is longer than 64 MiB");
                return false;
            }
            if piece.ends_with(b"\n") {
                self.length = 0;
                if let Some(stray) = self.stray.take() {
                    self.words.add(String::from_utf8_lossy(&stray).trim_end());
                }
            }
        }
        true
    }
}

impl AsyncRead for Lines {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let lines = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut lines.stdout).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = polled
            && !lines.follow(&buffer.filled()[before..])
        {
            return Poll::Ready(Err(std::io::ErrorKind::FileTooLarge.into()));
        }
        polled
    }
}
