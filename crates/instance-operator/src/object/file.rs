//! Files of Pods.

use super::ObjectId;

/// File of a Pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadFile {
    /// Identity of the Pod.
    pub pod: ObjectId,
    /// UID of the Pod: another Pod of this name has other files.
    pub uid: String,
    /// Name of the container.
    pub container: String,
    /// Path of the file.
    pub path: String,
}

/// Result of reading a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRead {
    /// Content of the file.
    Content(Vec<u8>),
    /// The file was not read, because it is too large.
    TooLarge,
    /// The command that reads the file failed with this message, for example because the file does
    /// not exist.
    CommandFailed(String),
}
