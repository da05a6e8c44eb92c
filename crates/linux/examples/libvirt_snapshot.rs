//! Prints what corefit sees of a libvirt host, as JSON.
//!
//! `cargo run -p corefit-linux --example libvirt_snapshot -- qemu:///system [SECONDS]`: after so many
//! seconds (1) of looking once a second, so that guest agents have answered; times go to stderr.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use corefit_linux::libvirt::{Options, open};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().unwrap_or_default();
    let seconds: u32 = arguments.next().and_then(|s| s.parse().ok()).unwrap_or(1);
    let show = || -> Result<String, String> {
        let mut machine = open(&uri, Options::default());
        let mut last = None;
        for second in 0..=seconds {
            if second > 0 {
                machine.pass(Duration::from_secs(1)).map_err(|e| e.to_string())?;
            }
            let begun = Instant::now();
            last = Some(machine.observe());
            eprintln!("observed in {:?}", begun.elapsed());
        }
        let snapshot = last.ok_or("nothing was observed")?.map_err(|e| e.to_string())?;
        serde_json::to_string_pretty(&snapshot).map_err(|e| e.to_string())
    };
    match show() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("libvirt_snapshot: {error}");
            ExitCode::from(1)
        }
    }
}
