// SPDX-License-Identifier: Apache-2.0
//! Moves an image by Rust's crate nbd, which knows neither TLS nor structured replies:
//! nbd_crate read|write SOCKET EXPORT FILE

use std::fs::File;
use std::io::{copy, BufWriter, Read, Result, Write};
use std::os::unix::net::UnixStream;

use nbd::client::{handshake, NbdClient};

const PIECE: usize = 1 << 20;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let mut stream = UnixStream::connect(&words[2])?;
    let export = handshake(&mut stream, words[3].as_bytes())?;
    let size = export.size;
    let mut client = NbdClient::new(&mut stream, &export);
    if words[1] == "read" {
        let mut file = BufWriter::with_capacity(PIECE, File::create(&words[4])?);
        let mut piece = vec![0; PIECE];
        let mut left = size;
        while left > 0 {
            let length = left.min(PIECE as u64) as usize;
            client.read_exact(&mut piece[..length])?;
            file.write_all(&piece[..length])?;
            left -= length as u64;
        }
        file.flush()
    } else {
        let mut file = File::open(&words[4])?;
        let mut writer = BufWriter::with_capacity(PIECE, client);
        copy(&mut file, &mut writer)?;
        writer.flush() // and that of the server
    }
}
