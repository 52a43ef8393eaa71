//! AgentCore's results and failures as what they mean. Pure.

use std::error::Error;

use aws_sdk_bedrockagentcore::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_bedrockagentcore::primitives::Blob;
use aws_sdk_bedrockagentcore::types::{CodeInterpreterResult, ContentBlock, ResourceContent};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper_util::client::legacy::Error as ClientError;
use serde_json::{Map, Value};

use super::error::BedrockError;
use crate::domain::execution::Output;
use crate::domain::reason::Reason;

/// What a tool said, all events of its stream together.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    events: usize,
    text: String,
    stdout: Option<String>,
    stderr: String,
    exit_code: Option<i32>,
    is_error: bool,
    is_structured: bool,
    /// Pictures and the like, which the service shows by itself.
    pub(super) outputs: Vec<Output>,
    /// The content of the first resource.
    pub(super) resource: Option<Vec<u8>>,
}

impl Said {
    /// Takes one more event. Texts go on, what is single is as it was said last.
    pub(super) fn take(&mut self, result: CodeInterpreterResult) {
        self.events += 1;
        self.is_error |= result.is_error.unwrap_or(false);
        if let Some(structured) = result.structured_content {
            self.is_structured = true;
            if let Some(stdout) = structured.stdout {
                self.stdout.get_or_insert_default().push_str(&stdout);
            }
            self.stderr.push_str(&structured.stderr.unwrap_or_default());
            self.exit_code = structured.exit_code.or(self.exit_code);
        }
        for block in result.content {
            self.block(block);
        }
    }

    fn block(&mut self, block: ContentBlock) {
        match block {
            ContentBlock { resource: Some(resource), .. } => self.resource(resource),
            ContentBlock { data: Some(data), mime_type: Some(mime), .. } => {
                self.show(mime, STANDARD.encode(data));
            }
            ContentBlock { text: Some(text), .. } => self.text.push_str(&text),
            _ => {}
        }
    }

    fn resource(&mut self, resource: ResourceContent) {
        let ResourceContent { mime_type, text, blob, .. } = resource;
        if let Some(mime) = mime_type {
            let shown = text.clone().or_else(|| blob.as_ref().map(|blob| STANDARD.encode(blob)));
            self.show(mime, shown.unwrap_or_default());
        }
        let content = blob.map_or_else(|| text.unwrap_or_default().into_bytes(), Blob::into_inner);
        self.resource.get_or_insert(content);
    }

    fn show(&mut self, mime: String, value: String) {
        let data = Map::from_iter([(mime, Value::String(value))]);
        self.outputs.push(Output { data, metadata: Map::new(), main: false });
    }

    /// What was printed; a refusal or an empty stream is an error.
    pub(super) fn printed(&self) -> Result<&str, BedrockError> {
        if self.events == 0 {
            return Err(BedrockError::Nothing);
        }
        if self.is_error && !self.is_structured {
            return Err(BedrockError::Tool(Reason::new(&self.text)));
        }
        // the text mirrors what was printed
        Ok(self.stdout.as_deref().unwrap_or(&self.text))
    }

    /// What the service says of an interpreter that ended within a cell.
    pub(super) fn last_words(&self) -> Reason {
        let words = if self.stderr.trim().is_empty() { &self.text } else { &self.stderr };
        Reason::new(words.trim())
    }

    /// Whether the code failed, as the service sees it.
    pub(super) fn has_failed(&self) -> bool {
        self.exit_code.map_or(self.is_error, |code| code != 0)
    }
}

/// What a failure of a call means, before anything of an answer has come.
pub(super) fn failure<E>(error: SdkError<E>) -> BedrockError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let status = error.raw_response().map(|response| response.status().as_u16());
    let code = error.code().map(str::to_owned);
    let reason = Reason::new(error.message().unwrap_or_default());
    match (&error, status) {
        (SdkError::ConstructionFailure(_), _) => BedrockError::NotSent(Box::new(error)),
        (SdkError::DispatchFailure(failed), _)
            if is_unsent(failed.is_user() || failed.is_other(), &error) =>
        {
            BedrockError::NotSent(Box::new(error))
        }
        (SdkError::ServiceError(_), Some(404)) if is_absent(code.as_deref()) => BedrockError::Gone,
        (SdkError::ServiceError(_), Some(409)) if code.is_some() => BedrockError::Busy(reason),
        // what bears no name of AWS's is of somebody between us, who may have passed it on
        (SdkError::ServiceError(_), Some(status @ (400..=407 | 410..=499))) if code.is_some() => {
            BedrockError::Refused { status, code, reason }
        }
        (SdkError::ServiceError(_), _) => BedrockError::Failed(reason),
        _ => BedrockError::Broken(Box::new(error)),
    }
}

/// What a failure means once the head of an answer has come: it may have been done.
pub(super) fn broken<E, R>(error: SdkError<E, R>) -> BedrockError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    R: std::fmt::Debug + Send + Sync + 'static,
{
    match error.as_service_error() {
        Some(told) => BedrockError::Failed(Reason::new(told.message().unwrap_or_default())),
        None => BedrockError::Broken(Box::new(error)),
    }
}

/// A page of somebody between us is no word of AWS's.
fn is_absent(code: Option<&str>) -> bool {
    code == Some("ResourceNotFoundException")
}

/// Whether nothing can have been sent: there was no connection, or none was asked for, as without
/// credentials.
fn is_unsent(is_our_own: bool, error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(client) = error.downcast_ref::<ClientError>() {
            return client.is_connect();
        }
        cause = error.source();
    }
    is_our_own
}

#[cfg(test)]
mod tests {
    use aws_sdk_bedrockagentcore::types::{
        ContentBlockType, ResourceContentType, ToolResultStructuredContent,
    };

    use super::*;

    fn text(text: &str) -> ContentBlock {
        ContentBlock::builder().r#type(ContentBlockType::Text).text(text).build().expect("a block")
    }

    fn said(results: Vec<CodeInterpreterResult>) -> Said {
        let mut said = Said::default();
        for result in results {
            said.take(result);
        }
        said
    }

    fn result(
        content: ContentBlock,
        structured: Option<(&str, Option<i32>)>,
    ) -> CodeInterpreterResult {
        let structured = structured.map(|(stdout, code)| {
            ToolResultStructuredContent::builder().stdout(stdout).set_exit_code(code).build()
        });
        CodeInterpreterResult::builder()
            .content(content)
            .set_structured_content(structured)
            .build()
            .expect("a result")
    }

    #[test]
    fn events_of_one_call_are_put_together() {
        let said = said(vec![
            result(text("a"), Some(("a", None))),
            result(text("b"), Some(("b", Some(3)))),
        ]);
        assert_eq!(said.printed().expect("printed"), "ab");
        assert!(said.has_failed());
    }

    #[test]
    fn no_event_is_no_answer_and_a_refusal_is_one() {
        assert!(matches!(Said::default().printed(), Err(BedrockError::Nothing)));
        let mut refusal = result(text("bad path"), None);
        refusal.is_error = Some(true);
        let refused = said(vec![refusal]);
        let told = refused.printed().expect_err("refused").to_string();
        assert_eq!(told, "a tool of AgentCore refused: bad path");
        assert_eq!(
            said(vec![result(text("only text"), None)]).printed().expect("text"),
            "only text"
        );
    }

    #[test]
    fn pictures_and_resources_of_the_service_are_shown() {
        let picture = ContentBlock::builder()
            .r#type(ContentBlockType::Image)
            .data(Blob::new("png"))
            .mime_type("image/png");
        let resource = ResourceContent::builder()
            .r#type(ResourceContentType::Text)
            .mime_type("text/html")
            .text("<b>");
        let resource = resource.build().expect("a resource");
        let resource =
            ContentBlock::builder().r#type(ContentBlockType::EmbeddedResource).resource(resource);
        let said = said(vec![
            result(picture.build().expect("a block"), Some(("", Some(0)))),
            result(resource.build().expect("a block"), None),
        ]);
        let shown: Vec<_> =
            said.outputs.iter().map(|output| Value::from(output.data.clone())).collect();
        assert_eq!(
            shown,
            [serde_json::json!({"image/png": "cG5n"}), serde_json::json!({"text/html": "<b>"})]
        );
        assert_eq!(said.resource, Some(b"<b>".to_vec()));
    }
}
