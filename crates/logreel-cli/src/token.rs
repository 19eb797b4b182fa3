//! `logreel token`: what callers of `serve` from other machines are known by.

use std::sync::Arc;
use std::time::Duration;

use logreel::Env as _;
use logreel::ErrorKind;
use logreel::store::SystemEnv;
use logreel_server::{Role, Tokens};
use serde_json::json;

use crate::error::Failure;
use crate::output::{Output, Page, Paint};
use crate::store::{Kept, Missing, Place, Spot};
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

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let tokens = match place.find()? {
        // A store that is still to be made has its file of tokens already.
        Spot::File(path) => Some(Tokens::beside(&path)),
        Spot::Database(_) => {
            let missing = match args.verb {
                Verb::Create { .. } => Missing::Make,
                Verb::List | Verb::Revoke { .. } => Missing::Refuse,
            };
            of(&place.act(missing, None, out).await?.kept)
        }
    };
    let Some(tokens) = tokens else {
        return Ok(0);
    };
    match args.verb {
        Verb::Create {
            name,
            role,
            expires,
        } => {
            let made = tokens
                .create(&SystemEnv, name, role.into(), expires)
                .await?;
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
        Verb::List => list(&tokens, out).await?,
        Verb::Revoke { id } => {
            if !tokens.revoke(&id).await? {
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

/// Those of a store that is open; in memory there are none.
pub fn of(kept: &Kept) -> Option<Tokens> {
    match kept {
        Kept::Memory => None,
        Kept::File(store) => Some(Tokens::beside(store.path())),
        Kept::Database(store, _) => Some(Tokens::of_database(Arc::clone(store))),
    }
}

async fn list(tokens: &Tokens, out: &mut Output) -> anyhow::Result<()> {
    let all = tokens.list().await?;
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
