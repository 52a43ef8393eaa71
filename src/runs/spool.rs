//! Files of a request, kept until their sandbox can take them.

use std::io::Write;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use super::{Desk, RunError, Runs};
use crate::domain::file::{FileEntry, FilePath};
use crate::sandbox::Sandbox;

/// A file that comes with a request.
pub struct NewFile {
    /// Where it is to lie.
    pub path: FilePath,
    /// What is in it.
    pub content: Content,
}

/// Where the content is meanwhile.
pub enum Content {
    /// In memory: it came inside a JSON body, whose size is limited.
    Whole(Bytes),
    /// In a file without a name, gone with this value.
    Spooled(std::fs::File),
}

/// Takes the content of one file as it comes in.
pub struct Spool {
    file: std::fs::File,
    written: u64,
    most: u64,
}

impl Runs {
    /// A place for the content of one file, as large as files may be.
    pub fn spool(&self) -> Result<Spool, RunError> {
        let file = tempfile::tempfile_in(&self.desk.spool_dir).map_err(RunError::Spool)?;
        Ok(Spool { file, written: 0, most: self.desk.limits.file_bytes })
    }
}

impl Spool {
    /// Takes a piece.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), RunError> {
        self.written += piece.len() as u64;
        if self.written > self.most {
            return Err(RunError::FileTooLarge(self.most));
        }
        self.file.write_all(piece).map_err(RunError::Spool)
    }

    /// The content, to be read from its start.
    pub fn finish(mut self) -> Result<Content, RunError> {
        use std::io::Seek;
        self.file.rewind().map_err(RunError::Spool)?;
        Ok(Content::Spooled(self.file))
    }
}

impl Content {
    fn stream(self) -> BoxStream<'static, std::io::Result<Bytes>> {
        match self {
            Self::Whole(bytes) => stream::once(async { Ok(bytes) }).boxed(),
            Self::Spooled(file) => {
                let file = tokio::fs::File::from_std(file).take(u64::MAX);
                ReaderStream::with_capacity(file, 256 * 1024).into_stream().boxed()
            }
        }
    }
}

impl Desk {
    /// Writes the files of a request into the sandbox.
    pub(super) async fn bring(
        &self,
        sandbox: &dyn Sandbox,
        files: Vec<NewFile>,
    ) -> Result<Vec<FileEntry>, RunError> {
        let mut entries = Vec::with_capacity(files.len());
        for NewFile { path, content } in files {
            let most = self.limits.file_bytes;
            entries.push(sandbox.write_file(&path, content.stream(), most).await?);
        }
        Ok(entries)
    }
}
