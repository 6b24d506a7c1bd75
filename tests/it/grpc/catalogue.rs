//! What the gate says that it serves: reflection, in both of its versions, and health.

use std::collections::BTreeSet;

use prost::Message as _;
use prost_types::{FileDescriptorProto, MethodDescriptorProto};
use tonic::client::Grpc;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::raw::send;
use crate::support::running::{PROPOSER, World, with_bearer};

/// One exchange in a version of reflection; the versions differ in package alone.
macro_rules! reflection {
    ($name:ident, $version:ident, $path:literal) => {
        mod $name {
            use super::*;
            use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
            use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
            use tonic_reflection::pb::$version::{
                ServerReflectionRequest, ServerReflectionResponse,
            };

            async fn ask(
                world: &World,
                request: MessageRequest,
            ) -> Result<MessageResponse, Status> {
                let request =
                    ServerReflectionRequest { host: String::new(), message_request: Some(request) };
                let mut grpc = Grpc::new(world.channel.clone());
                grpc.ready().await.unwrap();
                let codec = tonic_prost::ProstCodec::<
                    ServerReflectionRequest,
                    ServerReflectionResponse,
                >::default();
                let path = http::uri::PathAndQuery::from_static($path);
                let request = Request::new(tokio_stream::once(request));
                let mut answers = grpc.streaming(request, path, codec).await?.into_inner();
                Ok(answers.message().await?.unwrap().message_response.unwrap())
            }

            pub async fn services(world: &World) -> BTreeSet<String> {
                match ask(world, MessageRequest::ListServices(String::new())).await.unwrap() {
                    MessageResponse::ListServicesResponse(list) => {
                        list.service.into_iter().map(|service| service.name).collect()
                    }
                    other => panic!("{other:?}"),
                }
            }

            pub async fn file_of(world: &World, symbol: &str) -> Result<FileDescriptorProto, Code> {
                let answer =
                    ask(world, MessageRequest::FileContainingSymbol(symbol.to_owned())).await;
                match answer.map_err(|status| status.code())? {
                    MessageResponse::FileDescriptorResponse(files) => {
                        Ok(FileDescriptorProto::decode(&*files.file_descriptor_proto[0]).unwrap())
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    };
}

reflection!(now, v1, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
reflection!(older, v1alpha, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");

const NOT_SERVED: [&str; 2] = ["toolgate.v1.Admin/Status", "toolgate.v1.ToolHandler/Invoke"];

#[tokio::test]
async fn reflection_lists_what_is_served_and_nothing_else() {
    let world = World::start().await;
    let own = |services: BTreeSet<String>| {
        let (reflection, rest): (BTreeSet<_>, BTreeSet<_>) =
            services.into_iter().partition(|name| name.starts_with("grpc.reflection."));
        assert!(!reflection.is_empty());
        rest
    };
    let wanted: BTreeSet<_> = ["Admin", "Audit", "Confirmations", "ToolGate"]
        .map(|name| format!("toolgate.v1.{name}"))
        .into();
    let wanted = &wanted | &BTreeSet::from(["grpc.health.v1.Health".to_owned()]);
    assert_eq!(own(now::services(&world).await), wanted);
    assert_eq!(own(older::services(&world).await), wanted);

    for (service, wanted) in [
        (
            "toolgate.v1.ToolGate",
            &["Execute", "ExecuteStream", "Check", "ListTools", "GetCall"][..],
        ),
        ("toolgate.v1.Confirmations", &["Issue", "Revoke"]),
        ("toolgate.v1.Admin", &["GetStatus", "Reload"]),
        ("toolgate.v1.Audit", &["Watch"]),
    ] {
        for file in [now::file_of(&world, service).await, older::file_of(&world, service).await] {
            let file = file.unwrap();
            assert_eq!(file.service.len(), 1);
            let methods: Vec<_> =
                file.service[0].method.iter().map(MethodDescriptorProto::name).collect();
            assert_eq!(methods, wanted, "{service}");
        }
    }
    now::file_of(&world, "toolgate.v1.ExecuteRequest").await.unwrap();
    for symbol in NOT_SERVED {
        let symbol = symbol.replace('/', ".");
        assert_eq!(now::file_of(&world, &symbol).await, Err(Code::NotFound), "{symbol}");
        assert_eq!(older::file_of(&world, &symbol).await, Err(Code::NotFound), "{symbol}");
    }
}

#[tokio::test]
async fn what_reflection_does_not_list_is_unimplemented() {
    let world = World::start().await;
    for method in NOT_SERVED {
        let request = with_bearer(Request::new(Vec::new()), PROPOSER);
        let status = send(&world.channel, &format!("/{method}"), request).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{method}: {status:?}");
    }
}

#[tokio::test]
async fn health_says_serving_without_credentials() {
    let world = World::start().await;
    let mut health = HealthClient::new(world.channel.clone());
    for service in ["", "toolgate.v1.ToolGate", "toolgate.v1.Confirmations", "toolgate.v1.Audit"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service:?}");
    }
    let request = HealthCheckRequest { service: "toolgate.v1.Admin".to_owned() };
    assert_eq!(health.check(request).await.unwrap_err().code(), Code::NotFound);
}
