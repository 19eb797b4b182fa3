//! `logreel init`: a store, and a first workflow that runs offline.

use std::path::Path;

use anyhow::Context as _;

use crate::output::Output;
use crate::store::{Missing, Place};

const FILE: &str = "workflows/hello.toml";
const HELLO: &str = include_str!("init/hello.toml");

pub async fn run(place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let acting = place.act(Missing::Make, None, out).await?;
    acting.engine.close().await?;
    let file = Path::new(FILE);
    if file.exists() {
        out.note(format!("{FILE} is there already and stays as it is"));
    } else {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("{} cannot be made", folder.display()))?;
        }
        let write = || -> std::io::Result<()> {
            let mut made = std::fs::File::create_new(file)?;
            std::io::Write::write_all(&mut made, HELLO.as_bytes())
        };
        write().with_context(|| format!("{FILE} cannot be written"))?;
        out.note(format!("wrote {FILE}"));
    }
    out.note(format!("run it: logreel run {FILE} Ada"));
    Ok(0)
}
