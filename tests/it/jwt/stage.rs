//! A real gate that takes tokens of two issuers: one for services, one for people.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::{Request, Response, Status};
use toolgate::proto::confirmations_client::ConfirmationsClient;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{
    CallContext, CheckRequest, CheckResponse, ExecuteRequest, ExecuteResponse, IssueRequest,
    IssueResponse, ToolCall,
};

use super::signer::{Signer, jwks};
use crate::support::running::{Options, World, with_bearer};

pub const SERVICES: &str = "https://services.example";
pub const PEOPLE: &str = "https://people.example";

pub struct Stage {
    pub world: World,
    pub services: Signer,
    pub people: Signer,
    keys: TempDir,
}

impl Stage {
    /// Tools that need a confirmation, and `secrets` that may call besides.
    pub async fn start() -> Self {
        let services = Signer::new("services-1", "ES256");
        let people = Signer::new("people-1", "RS256");
        let keys = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(keys.path().join(name), text).unwrap();
        write("services.pem", services.pem());
        write("people.json", jwks([&people]));
        let more = format!("{}\n{}", crate::support::running::LEDGER, jwt_section(&keys));
        let world = World::start_with(Options { more: &more, ..Options::writes() }).await;
        Self { world, services, people, keys }
    }

    /// Puts another JWK set into the place of the people's, whole.
    pub fn replace_people(&self, text: &str) {
        let new = self.keys.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, self.keys.path().join("people.json")).unwrap();
    }

    pub async fn execute(
        &self,
        token: &str,
        context: CallContext,
        calls: Vec<ToolCall>,
    ) -> Result<ExecuteResponse, Status> {
        let message = ExecuteRequest { context: Some(context), calls, mode: 0 };
        let mut client = ToolGateClient::new(self.world.channel.clone());
        client.execute(with_bearer(Request::new(message), token)).await.map(Response::into_inner)
    }

    pub async fn check(
        &self,
        token: &str,
        context: CallContext,
        call: ToolCall,
    ) -> Result<CheckResponse, Status> {
        let message = CheckRequest { context: Some(context), calls: vec![call] };
        let mut client = ToolGateClient::new(self.world.channel.clone());
        client.check(with_bearer(Request::new(message), token)).await.map(Response::into_inner)
    }

    pub async fn issue(&self, token: &str, message: IssueRequest) -> Result<IssueResponse, Status> {
        let mut client = ConfirmationsClient::new(self.world.channel.clone());
        client.issue(with_bearer(Request::new(message), token)).await.map(Response::into_inner)
    }

    pub async fn judged(&self, way: &str, result: &str) -> i64 {
        self.world
            .metric("toolgate_callers_unknown_total", &[("way", way), ("result", result)])
            .await
    }
}

fn jwt_section(keys: &TempDir) -> String {
    let keys = keys.path().display();
    format!(
        "jwt:\n\
         - issuer: {SERVICES}\n  \
           audience: toolgate\n  \
           keys: [{{id: services-1, algorithm: ES256, file: {keys}/services.pem}}]\n  \
           claims: {{tenant: tenants, user: sub, roles: scope}}\n  \
           roles: {{chat: proposer, page: confirmer}}\n\
         - issuer: {PEOPLE}\n  \
           audience: [toolgate-people, people]\n  \
           jwks_file: {keys}/people.json\n  \
           algorithms: [RS256]\n  \
           claims: {{tenant: org, user: sub, roles: /access/roles, user_roles: groups}}\n  \
           roles: {{confirm: confirmer}}\n"
    )
}

/// In seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Claims of a service that proposes for the user of the usual context.
pub fn service() -> Value {
    json!({
        "iss": SERVICES, "aud": "toolgate", "iat": now(), "exp": now() + 600,
        "tenants": ["tenant-1", "tenant-2"], "sub": "user-1", "scope": "openid chat",
    })
}

/// Claims of a person who may confirm.
pub fn person(user: &str, groups: &[&str]) -> Value {
    json!({
        "iss": PEOPLE, "aud": ["toolgate-people"], "iat": now(), "exp": now() + 600,
        "org": "tenant-1", "sub": user, "access": {"roles": ["confirm"]}, "groups": groups,
    })
}

/// These claims with a member of another value, or without it where that is `null`.
pub fn with(mut claims: Value, name: &str, value: Value) -> Value {
    match value {
        Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
        value => claims[name] = value,
    }
    claims
}
