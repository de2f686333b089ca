//! The writer-side agent: runs beside an application that cannot hold a lease, and writes in its name.
//!
//! - [`port`]: the application's side: what is a read, what is a write, and what is refused. [`hosts`]: the names
//!   that requests may use for it.
//! - [`holdings`]: the leases of the objects in use ([`slot`]), for all writers. `keeper`: asks for a lease, keeps
//!   it, gives it back. `lease_history`: how soon the next one is asked for. [`held`]: a lease that is held.
//! - [`campaigns`]: the elections on Kubernetes Leases, one for each Lease. [`candidate`]: the rules of one.
//! - [`own_name`]: the name by which this agent holds leases.
//! - [`forward`]: forwards a request to the gate, once. [`pool`]: the connections for this. [`proof`]: what is shown
//!   to the gate with a write.
//! - [`status`]: who leads, for the application and for probes. [`compare`]: whether the gate has the same routes.
//! - `settings`: what settings mean here, and what is wrong with them.
//!
//! A write is sent only with the token of a lease that is held at that moment by this machine's clock: [`forward`]
//! takes its [`holdings::Use`]s, and only [`holdings`] makes them. Nothing is ever sent twice. The gate refuses what
//! still comes too late.

pub mod campaigns;
pub mod candidate;
pub mod compare;
pub mod forward;
pub mod held;
pub mod holdings;
pub mod hosts;
mod keeper;
mod lease_history;
pub mod own_name;
pub mod pool;
pub mod port;
pub mod proof;
mod settings;
pub mod slot;
pub mod status;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use uuid::Uuid;

use self::{
    campaigns::Campaigns,
    candidate::Timing,
    forward::Forwarder,
    holdings::{Holdings, Led},
    own_name::OwnName,
    port::Port,
    proof::Proof,
};
use crate::{
    api::listen,
    client::{LeaseApi, default_holder},
    clock::Clock,
    config::{AgentSettings, Fault, Faults},
    fence::{HolderId, ObjectId},
    kubernetes::api::Cluster,
    metrics::AgentMetrics,
};

/// The most connections to the status port.
const STATUS_ROOM: usize = 128;
/// How long a stop waits for releases and for the last answers.
const LAST_CALLS: Duration = Duration::from_secs(8);

/// A running agent.
pub struct Running {
    pub agent: SocketAddr,
    pub status: SocketAddr,
    /// The holder's name that it was given, or has made up. None: the gate says it when a lease is wanted.
    pub holder: Option<HolderId>,
    holdings: Arc<Holdings>,
    port: Arc<Port>,
    stopping: watch::Sender<bool>,
    servers: Vec<JoinHandle<()>>,
    comparing: JoinHandle<()>,
}

/// Starts an agent.
///
/// # Errors
/// Everything that prevents the start.
pub async fn start(settings: &AgentSettings) -> Result<Running, Faults> {
    let fault = |key: &str, what: String| Faults(vec![Fault::new(key, what)]);
    let routes = settings.routes().map_err(Faults)?;
    let hosts = settings.agent.hosts().map_err(|what| fault("agent.hosts", what))?;
    let way = settings.gate.way().map_err(|(key, what)| fault(&format!("gate.{key}"), what))?;
    let api = LeaseApi::with(&settings.gate.api, &settings.gate.credentials());
    let api = api.map_err(|what| fault("gate.api", what.to_string()))?;
    let proof = Proof::of(&settings.gate).map_err(|(key, what)| fault(&format!("gate.{key}"), what))?;
    let (own, is_asked) = match settings.lease.holder_id.as_str() {
        "" => (default_holder(), settings.gate.proves_who_it_is()),
        name => (HolderId::new(name).map_err(|what| fault("lease.holder_id", what.to_string()))?, false),
    };
    let (app, status) = bind_both(settings).await?;

    let address = |key: &str, listener: &TcpListener| {
        listener.local_addr().map_err(|error| fault(key, format!("cannot listen: {error}")))
    };
    let (agent_address, status_address) = (address("agent.listen", &app)?, address("status.listen", &status)?);
    let metrics = Arc::new(AgentMetrics::new());
    let clock = Clock::machine();
    let campaigns = settings.has_leases().then(|| campaigns(settings, &own, &clock, &metrics)).transpose()?;
    let holder = (!is_asked).then(|| own.clone());
    let name = if is_asked { OwnName::asked(api.clone(), own) } else { OwnName::given(api.clone(), own) };
    let (leases, counted) = (settings.lease.clone(), Arc::clone(&metrics));
    let comparing = tokio::spawn(compare::compare(api.clone(), compare::to_compare(&routes)));
    let holdings = Holdings::new(api, name, campaigns, leases, clock.clone(), counted);
    for route in settings.up_front() {
        let object = ObjectId::new(&route.object).map_err(|what| fault("route.object", what.to_string()))?;
        holdings.take_up_front(&Led { object, by: route.lease() });
    }
    let forwarder = Forwarder::new(way, settings.gate.clone(), proof, clock);
    let stopping = watch::Sender::new(false);
    let port =
        Port::new(routes, Arc::clone(&holdings), forwarder, Arc::clone(&metrics), &settings.lease, hosts.clone());
    let port = Arc::new(port);
    let status_calls = status::router(Arc::clone(&holdings), metrics, hosts);
    let servers = vec![
        port::serve(&port, app, &settings.agent, stopping.subscribe()),
        listen::serve(status, listen::Port::ops(STATUS_ROOM), status_calls, stopping.subscribe()),
    ];
    Ok(Running { agent: agent_address, status: status_address, holder, holdings, port, stopping, servers, comparing })
}

fn campaigns(
    settings: &AgentSettings,
    holder: &HolderId,
    clock: &Clock,
    metrics: &Arc<AgentMetrics>,
) -> Result<Campaigns, Faults> {
    let fault = |key: String, what: String| Faults(vec![Fault::new(key, what)]);
    let cluster =
        Cluster::new(&settings.kubernetes.way()).map_err(|(key, what)| fault(format!("kubernetes.{key}"), what))?;
    // The next process may use the same given name, while others still count this one as the holder.
    let identity = if settings.lease.holder_id.is_empty() {
        holder.clone()
    } else {
        let word = Uuid::new_v4().simple().to_string();
        let name = HolderId::new(&format!("{holder}_{}", &word[..8]));
        name.map_err(|what| fault("lease.holder_id".to_owned(), what.to_string()))?
    };
    tracing::info!(%identity, "taking part in elections on Leases");
    Ok(Campaigns::new(cluster, identity, Timing::new(settings.lease.ttl_ms), clock.clone(), Arc::clone(metrics)))
}

async fn bind_both(settings: &AgentSettings) -> Result<(TcpListener, TcpListener), Faults> {
    async fn bind(key: &str, address: SocketAddr) -> Result<TcpListener, Fault> {
        let bound = TcpListener::bind(address).await;
        bound.map_err(|error| Fault::new(key, format!("cannot listen on {address}: {error}")))
    }
    let app = bind("agent.listen", settings.agent.listen).await;
    match (app, bind("status.listen", settings.status.listen).await) {
        (Ok(app), Ok(status)) => Ok((app, status)),
        (app, status) => Err(Faults([app.err(), status.err()].into_iter().flatten().collect())),
    }
}

impl Running {
    /// Takes no more writes, finishes the writes in flight within the deadline, and releases the leases.
    ///
    /// # Errors
    /// What did not end in good order.
    pub async fn stop(self, deadline: Duration) -> Result<(), &'static str> {
        self.holdings.drain();
        self.comparing.abort();
        let finished = tokio::time::timeout(deadline, self.port.idle()).await;
        // The gate settles a write that is still in flight before it hands the object on.
        let released = tokio::time::timeout(LAST_CALLS, self.holdings.release()).await;
        self.stopping.send_replace(true);
        for server in self.servers {
            // A server that panicked has stopped too.
            let _ = tokio::time::timeout(LAST_CALLS, server).await;
        }
        finished.map_err(|_| "writes were still on their way at the deadline")?;
        released.map_err(|_| "some leases were not released, and run out")
    }
}
