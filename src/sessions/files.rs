//! Files of a session, reached while cells run.

use super::{SessionError, Sessions};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::{SessionId, Tenant};
use crate::sandbox::ByteStream;

impl Sessions {
    /// Writes a file whole or not at all.
    pub async fn write_file(
        &self,
        tenant: &Tenant,
        id: SessionId,
        path: &FilePath,
        content: ByteStream,
        condition: &Condition,
    ) -> Result<FileEntry, SessionError> {
        let sandbox = self.sandbox(tenant, id).await?;
        Ok(sandbox.write_file(path, content, self.limits.file_bytes, condition).await?)
    }

    /// Opens a part of a file for reading.
    pub async fn read_file(
        &self,
        tenant: &Tenant,
        id: SessionId,
        path: &FilePath,
        part: Part,
    ) -> Result<(FileEntry, ByteStream), SessionError> {
        let sandbox = self.sandbox(tenant, id).await?;
        Ok(sandbox.read_file(path, part).await?)
    }

    /// All files, sorted by path.
    pub async fn list_files(
        &self,
        tenant: &Tenant,
        id: SessionId,
    ) -> Result<Vec<FileEntry>, SessionError> {
        let sandbox = self.sandbox(tenant, id).await?;
        Ok(sandbox.list_files().await?)
    }

    /// Removes a file.
    pub async fn delete_file(
        &self,
        tenant: &Tenant,
        id: SessionId,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(), SessionError> {
        let sandbox = self.sandbox(tenant, id).await?;
        Ok(sandbox.delete_file(path, condition).await?)
    }
}
