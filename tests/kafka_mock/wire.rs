//! A commit by another tool, that is no member of the group: its metadata may be anything, where the client takes only
//! text, so the request is written by hand.

use std::io::{Read, Write};
use std::net::TcpStream;

pub(crate) fn commit(
    bootstrap: &str,
    group: &str,
    topic: &str,
    partition: i32,
    offset: i64,
    metadata: &[u8],
) {
    let mut broker = TcpStream::connect(bootstrap).unwrap();
    let request = offset_commit(group, topic, partition, offset, metadata);
    broker.write_all(&request).unwrap();
    let mut length = [0; 4];
    broker.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    broker.read_exact(&mut answer).unwrap();
    // the last field of the answer is the error code of the last partition
    let error = &answer[answer.len() - 2..];
    assert_eq!(error, [0, 0], "the commit was refused");
}

/// An OffsetCommit request, version 2, of a client that is no member (Kafka protocol guide).
fn offset_commit(
    group: &str,
    topic: &str,
    partition: i32,
    offset: i64,
    metadata: &[u8],
) -> Vec<u8> {
    fn string(request: &mut Vec<u8>, bytes: &[u8]) {
        request.extend(i16::try_from(bytes.len()).unwrap().to_be_bytes());
        request.extend(bytes);
    }
    let mut request = Vec::new();
    request.extend(8_i16.to_be_bytes()); // OffsetCommit
    request.extend(2_i16.to_be_bytes());
    request.extend(1_i32.to_be_bytes()); // correlation
    string(&mut request, b"another tool");
    string(&mut request, group.as_bytes());
    request.extend((-1_i32).to_be_bytes()); // no generation
    string(&mut request, b""); // no member
    request.extend((-1_i64).to_be_bytes()); // the broker's retention
    request.extend(1_i32.to_be_bytes());
    string(&mut request, topic.as_bytes());
    request.extend(1_i32.to_be_bytes());
    request.extend(partition.to_be_bytes());
    request.extend(offset.to_be_bytes());
    string(&mut request, metadata);
    let mut frame = u32::try_from(request.len()).unwrap().to_be_bytes().to_vec();
    frame.extend(request);
    frame
}
