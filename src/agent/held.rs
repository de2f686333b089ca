//! What makes this agent an object's leader: a gate's lease, or a term by a Kubernetes Lease.

use std::{sync::Arc, time::Duration};

use super::candidate::term::{self, Term};
use crate::client::{Lease, Token, lease::NotRenewed};

/// A lease or a term. It is good while [`Held::token`] returns a token.
#[derive(Clone, Debug)]
pub enum Held {
    Gate(Arc<Lease>),
    Kubernetes(Arc<Term>),
}

/// Why a renewal failed: the lease is lost, or the renewal was not confirmed.
pub enum Not {
    Held(String),
    Confirmed(String),
}

impl Held {
    /// Returns the token if the lease is held now by this machine's clock.
    ///
    /// # Errors
    /// Why it was lost.
    pub fn token(&self) -> Result<Token, String> {
        match self {
            Self::Gate(lease) => lease.token().map_err(|lost| lost.to_string()),
            Self::Kubernetes(term) => term.token().map_err(|over| over.to_string()),
        }
    }

    /// The holder's id.
    #[must_use]
    pub fn holder(&self) -> &str {
        match self {
            Self::Gate(lease) => lease.holder().as_str(),
            Self::Kubernetes(term) => term.identity().as_str(),
        }
    }

    /// The holder's id for a gate that checks it too. Only a Lease of Kubernetes has a holder outside the gate.
    #[must_use]
    pub fn shown_holder(&self) -> Option<&str> {
        match self {
            Self::Gate(_) => None,
            Self::Kubernetes(term) => Some(term.identity().as_str()),
        }
    }

    #[must_use]
    pub fn left_ms(&self) -> u64 {
        match self {
            Self::Gate(lease) => lease.left_ms(),
            Self::Kubernetes(term) => term.left_ms(),
        }
    }

    /// Renews, and returns once the granter has confirmed.
    ///
    /// # Errors
    /// When the lease is lost, or the granter has not confirmed.
    pub async fn renew(&self) -> Result<(), Not> {
        match self {
            Self::Gate(lease) => {
                lease.renew(Duration::from_millis(lease.ttl_ms() / 3)).await.map_err(|not| match not {
                    NotRenewed::Lost(lost) => Not::Held(lost.to_string()),
                    NotRenewed::Unconfirmed(failed) => Not::Confirmed(failed.to_string()),
                })
            }
            Self::Kubernetes(term) => term.renew().await.map_err(|not| match not {
                term::NotRenewed::Over(over) => Not::Held(over.to_string()),
                term::NotRenewed::Unconfirmed(away) => Not::Confirmed(away.to_string()),
            }),
        }
    }

    /// The gate refused a write because of this lease.
    pub fn refused_write(&self, code: &str) {
        match self {
            Self::Gate(lease) => lease.refused_write(code),
            Self::Kubernetes(term) => term.refused_write(code),
        }
    }
}
