//! `logreel token`: what callers of `serve` from other machines are known by.

use std::time::Duration;

use logreel::Env as _;
use logreel::ErrorKind;
use logreel::store::SystemEnv;
use logreel::store::postgres::notes_of;
use logreel_server::{Role, Tokens};
use serde_json::json;

use crate::error::Failure;
use crate::output::{Output, Page, Paint};
use crate::store::{Place, Spot};
use crate::table::{self, Cell, Column, left, right};
use crate::text;

const COLUMNS: &[Column] = &[
    left("ID", 8),
    left("NAME", 24),
    left("ROLE", 8),
    right("AGE", 4),
    left("EXPIRES", 20),
];

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Make a token and print it, once
    Create {
        /// Whose it is; recorded with what is done by it
        #[arg(long, value_name = "WHO", default_value = "token")]
        name: String,
        /// What it is for
        #[arg(long, value_name = "ROLE", default_value = "operate")]
        role: Rank,
        /// How long it holds, such as 30d [default: until it is revoked]
        #[arg(long, value_name = "SPAN", value_parser = text::parse_duration)]
        expires: Option<Duration>,
    },
    /// List them
    List,
    /// Make one worthless, at once
    Revoke {
        /// Which, as `list` shows it
        id: String,
    },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Rank {
    /// Look
    Read,
    /// Start runs and act on them
    Operate,
    /// Send specs of one's own, which is running any program
    Admin,
}

impl From<Rank> for Role {
    fn from(rank: Rank) -> Self {
        match rank {
            Rank::Read => Self::Read,
            Rank::Operate => Self::Operate,
            Rank::Admin => Self::Admin,
        }
    }
}

pub fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let beside = match place.find()? {
        Spot::File(path) => path,
        Spot::Database(url) => notes_of(url.secret())?,
    };
    let tokens = Tokens::beside(&beside);
    match args.verb {
        Verb::Create {
            name,
            role,
            expires,
        } => {
            let made = tokens.create(&SystemEnv, name, role.into(), expires)?;
            if out.json {
                out.json_line(&json!({"token": made.secret, "id": made.token.id,
                    "name": made.token.name, "role": made.token.role,
                    "expires_at": made.token.expires_at}))?;
            } else {
                out.line(made.secret)?;
            }
            let id = made.token.id;
            out.note(format!(
                "this is shown once; `logreel token revoke {id}` makes it worthless"
            ));
        }
        Verb::List => list(&tokens, out)?,
        Verb::Revoke { id } => {
            if !tokens.revoke(&id)? {
                return Err(
                    Failure::new(ErrorKind::NotFound, format!("there is no token {id:?}"))
                        .hint("`logreel token list` lists them")
                        .into(),
                );
            }
            out.note(format!("{id} is worthless now"));
        }
    }
    Ok(0)
}

fn list(tokens: &Tokens, out: &mut Output) -> anyhow::Result<()> {
    let all = tokens.list()?;
    if out.json {
        return out.json_line(&Page {
            items: all,
            next: None,
            has_more: false,
        });
    }
    if all.is_empty() {
        out.note("no tokens");
        return Ok(());
    }
    let now = SystemEnv.now();
    let rows: Vec<Vec<Cell>> = all
        .iter()
        .map(|token| {
            let expires = match token.expires_at {
                None => Cell::painted("never", Paint::Dim),
                Some(at) if at <= now => Cell::painted("has expired", Paint::Bad),
                Some(at) => text::moment(at).into(),
            };
            vec![
                token.id.clone().into(),
                text::one_line(&token.name).into(),
                token.role.as_str().into(),
                text::age(now.since(token.created_at)).into(),
                expires,
            ]
        })
        .collect();
    table::print(out, "", COLUMNS, &rows)?;
    Ok(())
}
