//! Headers of a message (KIP-82).

use bytes::Bytes;

/// One header: a name, and a value that may be null.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Header {
    /// The name. It may occur more than once in a message.
    pub name: Box<str>,
    /// The value; `None` if it is null.
    pub value: Option<Bytes>,
}

impl Header {
    /// A header with a value.
    pub fn new(name: impl Into<Box<str>>, value: impl Into<Bytes>) -> Self {
        Header {
            name: name.into(),
            value: Some(value.into()),
        }
    }

    /// A header whose value is null.
    pub fn null(name: impl Into<Box<str>>) -> Self {
        Header {
            name: name.into(),
            value: None,
        }
    }
}

/// The headers of a message, in the order in which they were written (KIP-82). Names may repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Headers(Vec<Header>);

impl Headers {
    /// No headers. Allocates nothing.
    pub const fn new() -> Self {
        Headers(Vec::new())
    }

    /// Adds a header at the end.
    pub fn push(&mut self, header: Header) {
        self.0.push(header);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Header> {
        self.0.iter()
    }

    /// The values of all headers of this name, in order; a null value is `None`.
    pub fn all<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = Option<&'a [u8]>> {
        self.0
            .iter()
            .filter(move |header| &*header.name == name)
            .map(|header| header.value.as_deref())
    }

    /// The value of the last header of this name, which is the one that counts by convention (`lastHeader` of the Java
    /// client). The outer `None`: there is no such header; the inner one: its value is null.
    pub fn last<'a>(&'a self, name: &'a str) -> Option<Option<&'a [u8]>> {
        self.all(name).next_back()
    }
}

impl<'a> IntoIterator for &'a Headers {
    type Item = &'a Header;
    type IntoIter = std::slice::Iter<'a, Header>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Header> for Headers {
    fn from_iter<I: IntoIterator<Item = Header>>(headers: I) -> Self {
        Headers(headers.into_iter().collect())
    }
}
