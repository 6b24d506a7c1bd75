"""A Python client against a real gate. `cargo test --test it python` starts both.

Environment: TOOLGATE_ADDRESS, TOOLGATE_SOCKET (a path) and TOOLGATE_SECRETS (a directory with a file for each
role). The gate serves the demo's policy before a handler that answers a search with one match and a status never, and
the confirmed write `create_note` besides.
"""

import json
import os
import pathlib
import unittest

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status
from toolgate.v1 import confirmations_pb2, confirmations_pb2_grpc, tool_gate_pb2, tool_gate_pb2_grpc, types_pb2

ADDRESS = os.environ["TOOLGATE_ADDRESS"]
SOCKET = os.environ["TOOLGATE_SOCKET"]
SECRETS = pathlib.Path(os.environ["TOOLGATE_SECRETS"])
SEARCH = '{"query": "drain", "knowledge_base_id": "handbook"}'
SERVICE = "toolgate.v1.ToolGate"
# Under a second here; a hang must fail, not hang the build.
PATIENCE = 30


def bearer(role):
    return [("authorization", f"Bearer {(SECRETS / role).read_text()}")]


BEARER = bearer("proposer")


def context(**changes):
    fields = {
        "request_id": "request-1",
        "user_id": "user-anna",
        "tenant_id": "tenant-north",
        "conversation_id": "conversation-1",
    }
    return types_pb2.CallContext(**{**fields, **changes})


def call(tool_call_id, name, arguments_json):
    return types_pb2.ToolCall(tool_call_id=tool_call_id, name=name, arguments_json=arguments_json)


def request(*calls, **changes):
    return tool_gate_pb2.ExecuteRequest(context=context(**changes), calls=calls)


def details(error):
    """The google.rpc details of a status, by their message's name."""
    found = {}
    for detail in rpc_status.from_call(error).details:
        name = detail.TypeName().rpartition(".")[2]
        message = getattr(error_details_pb2, name)()
        assert detail.Unpack(message)
        found[name] = message
    return found


class Gate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.channel = grpc.insecure_channel(ADDRESS)
        cls.gate = tool_gate_pb2_grpc.ToolGateStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()

    def execute(self, message, metadata=None):
        return self.gate.Execute(message, timeout=PATIENCE, metadata=BEARER if metadata is None else metadata)

    def refused(self, message, metadata=None):
        with self.assertRaises(grpc.RpcError) as raised:
            self.execute(message, metadata)
        return raised.exception

    def test_an_admitted_call_returns_its_result_and_its_pair(self):
        response = self.execute(request(call("call-1", "search_knowledge_base", SEARCH)))
        [result] = response.results
        self.assertEqual(result.outcome, types_pb2.OUTCOME_SUCCESS)
        self.assertEqual(result.reason, types_pb2.REASON_OK)
        self.assertEqual(result.audit, types_pb2.AUDIT_STATE_RECORDED)
        self.assertEqual(json.loads(result.result_json)["matches"][0]["document_id"], "operations")
        started, completed = response.events
        self.assertEqual(started.event, types_pb2.AUDIT_EVENT_TYPE_TOOL_CALL_STARTED)
        self.assertEqual(completed.event, types_pb2.AUDIT_EVENT_TYPE_TOOL_CALL_COMPLETED)
        self.assertEqual(completed.sequence, started.sequence + 1)
        self.assertEqual(completed.arguments_digest, started.arguments_digest)

    def test_a_refused_call_says_where_and_why_and_repeats_nothing(self):
        arguments = '{"query": "hunter2", "knowledge_base_id": 7, "tenant_id": "tenant-south"}'
        response = self.execute(request(call("call-1", "search_knowledge_base", arguments)))
        [result] = response.results
        self.assertEqual(result.outcome, types_pb2.OUTCOME_VALIDATION)
        self.assertEqual(result.reason, types_pb2.REASON_ARGUMENTS_INVALID)
        self.assertEqual(
            sorted((fault.pointer, fault.keyword) for fault in result.faults),
            [("", "additionalProperties"), ("/knowledge_base_id", "type")],
        )
        self.assertFalse(result.result_json)
        for made_up in ("hunter2", "tenant-south"):
            self.assertNotIn(made_up, str(response))

    def test_an_unknown_tool_runs_nothing_and_stops_the_batch(self):
        response = self.execute(
            request(call("call-1", "search_knowledge_base", SEARCH), call("call-2", "run_shell", "{}"))
        )
        first, second = response.results
        self.assertEqual(first.outcome, types_pb2.OUTCOME_NOT_RUN)
        self.assertEqual(second.reason, types_pb2.REASON_UNKNOWN_TOOL)
        self.assertEqual([event.tool for event in response.events], ["unknown", "unknown"])

    def test_a_time_out_is_a_result_not_a_status(self):
        slow = call("call-1", "get_document_status", '{"document_id": "readme"}')
        response = self.gate.Execute(request(slow), timeout=PATIENCE, metadata=BEARER)
        [result] = response.results
        self.assertEqual(result.reason, types_pb2.REASON_ATTEMPT_DEADLINE)
        self.assertEqual(result.attempt, 2)
        self.assertTrue(result.retryable)

    def test_check_and_list_tools_agree_with_execute(self):
        checked = self.gate.Check(
            tool_gate_pb2.CheckRequest(context=context(), calls=[call("call-1", "search_knowledge_base", SEARCH)]),
            timeout=PATIENCE,
            metadata=BEARER,
        )
        self.assertTrue(checked.verdicts[0].admitted)
        listed = self.gate.ListTools(
            tool_gate_pb2.ListToolsRequest(context=context()), timeout=PATIENCE, metadata=BEARER
        )
        self.assertEqual(
            [tool.name for tool in listed.tools],
            ["create_note", "create_support_draft", "get_document_status", "search_knowledge_base"],
        )
        for tool in listed.tools:
            self.assertEqual(json.loads(tool.arguments_schema_json)["type"], "object")
        self.assertEqual(checked.policy_digest, listed.policy_digest)

    def test_a_request_without_the_secret_is_unauthenticated(self):
        good = request(call("call-1", "search_knowledge_base", SEARCH))
        for metadata in ([], [("authorization", "Bearer " + "x" * 64)], BEARER + BEARER):
            error = self.refused(good, metadata)
            self.assertEqual(error.code(), grpc.StatusCode.UNAUTHENTICATED)
            info = details(error)["ErrorInfo"]
            self.assertEqual((info.reason, info.domain), ("UNAUTHENTICATED", "toolgate.dev"))

    def test_a_role_includes_its_own_methods_only(self):
        good = call("call-1", "search_knowledge_base", SEARCH)
        check = tool_gate_pb2.CheckRequest(context=context(), calls=[good])
        self.assertTrue(self.gate.Check(check, timeout=PATIENCE, metadata=bearer("confirmer")).verdicts[0].admitted)
        for role in ("confirmer", "auditor", "operator"):
            error = self.refused(request(good), bearer(role))
            self.assertEqual(error.code(), grpc.StatusCode.PERMISSION_DENIED)
            self.assertEqual(details(error)["ErrorInfo"].reason, "ROLE_MISSING")

    def test_a_bad_context_names_its_field(self):
        good = call("call-1", "search_knowledge_base", SEARCH)
        for field in ("request_id", "user_id", "tenant_id", "conversation_id"):
            for text in ("", "x" * 129, "hunter2\n", "hunter2\u200b"):
                error = self.refused(request(good, **{field: text}))
                self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
                found = details(error)
                self.assertEqual(found["ErrorInfo"].reason, "CONTEXT_INVALID")
                [violation] = found["BadRequest"].field_violations
                self.assertEqual(violation.field, field)
                self.assertNotIn("hunter2", error.details())
        error = self.refused(tool_gate_pb2.ExecuteRequest(calls=[good]))
        self.assertEqual(details(error)["BadRequest"].field_violations[0].field, "context")

    def test_an_empty_batch_is_a_status(self):
        error = self.refused(request())
        self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(details(error)["ErrorInfo"].reason, "BATCH_EMPTY")

    def test_reflection_lists_what_is_served_in_both_versions(self):
        for version in ("v1", "v1alpha"):
            # The messages of both versions are the same on the wire.
            reflect = self.channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            [answer] = reflect(iter([asked]), timeout=PATIENCE)
            names = {service.name for service in answer.list_services_response.service}
            served = {f"toolgate.v1.{name}" for name in ("Admin", "Audit", "Confirmations")}
            self.assertLessEqual({SERVICE, "grpc.health.v1.Health"} | served, names)
            for absent in ("ToolHandler",):
                self.assertNotIn(f"toolgate.v1.{absent}", names)

    def test_health_needs_no_secret(self):
        health = health_pb2_grpc.HealthStub(self.channel)
        for service in ("", SERVICE):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)

    def test_the_unix_socket_serves_the_same(self):
        # gRPC's C core takes the socket's path as authority, which HTTP/2 servers in Rust refuse.
        authority = [("grpc.default_authority", "localhost")]
        with grpc.insecure_channel(f"unix:{SOCKET}", options=authority) as channel:
            gate = tool_gate_pb2_grpc.ToolGateStub(channel)
            message = request(call("call-1", "search_knowledge_base", SEARCH))
            response = gate.Execute(message, timeout=PATIENCE, metadata=BEARER)
            self.assertEqual(response.results[0].reason, types_pb2.REASON_OK)
            with self.assertRaises(grpc.RpcError) as raised:
                gate.Execute(message, timeout=PATIENCE)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED)

    def test_a_write_is_previewed_confirmed_run_once_and_replayed(self):
        note = call("note-1", "create_note", '{"text": " tell Anna "}')
        [refused] = self.execute(request(note)).results
        self.assertEqual(refused.reason, types_pb2.REASON_CONFIRMATION_REQUIRED)
        self.assertTrue(refused.retryable)

        check = tool_gate_pb2.CheckRequest(context=context(), calls=[note])
        [verdict] = self.gate.Check(check, timeout=PATIENCE, metadata=bearer("confirmer")).verdicts
        self.assertFalse(verdict.admitted)
        self.assertEqual(verdict.preview.prompt, 'Note "tell Anna"?')
        self.assertEqual(json.loads(verdict.preview.normalised_arguments_json), {"text": "tell Anna"})

        issue = confirmations_pb2.IssueRequest(
            context=context(),
            call=note,
            confirming_user_id="user-anna",
            arguments_hash=verdict.preview.arguments_hash,
            key_id=verdict.preview.key_id,
            contract_digest=verdict.preview.contract_digest,
        )
        page = confirmations_pb2_grpc.ConfirmationsStub(self.channel)
        with self.assertRaises(grpc.RpcError) as raised:
            page.Issue(issue, timeout=PATIENCE, metadata=BEARER)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
        issued = page.Issue(issue, timeout=PATIENCE, metadata=bearer("confirmer"))
        self.assertEqual(issued.claims.confirmed_by_user_id, "user-anna")

        note.confirmation_ticket = issued.ticket
        moved = types_pb2.ToolCall()
        moved.CopyFrom(note)
        moved.arguments_json = '{"text": "tell everybody"}'
        [result] = self.execute(request(moved)).results
        self.assertEqual(result.reason, types_pb2.REASON_CONFIRMATION_MISMATCH)

        response = self.execute(request(note))
        [result] = response.results
        self.assertEqual((result.reason, result.effect), (types_pb2.REASON_OK, types_pb2.EFFECT_APPLIED))
        self.assertEqual(response.events[1].confirmation_id, issued.claims.confirmation_id)

        [replayed] = self.execute(request(note)).results
        self.assertEqual((replayed.outcome, replayed.reason), (types_pb2.OUTCOME_DENIED, types_pb2.REASON_CALL_REPLAYED))
        self.assertEqual(replayed.recorded.reason, types_pb2.REASON_OK)
        self.assertEqual(replayed.recorded.effect, types_pb2.EFFECT_APPLIED)
        self.assertEqual(replayed.recorded.result_digest, response.events[1].result_digest)

    def test_a_revoked_ticket_is_refused(self):
        note = call("note-2", "create_note", '{"text": "x"}')
        check = tool_gate_pb2.CheckRequest(context=context(), calls=[note])
        confirmer = bearer("confirmer")
        preview = self.gate.Check(check, timeout=PATIENCE, metadata=confirmer).verdicts[0].preview
        issue = confirmations_pb2.IssueRequest(
            context=context(),
            call=note,
            confirming_user_id="user-anna",
            arguments_hash=preview.arguments_hash,
            key_id=preview.key_id,
            contract_digest=preview.contract_digest,
        )
        page = confirmations_pb2_grpc.ConfirmationsStub(self.channel)
        issued = page.Issue(issue, timeout=PATIENCE, metadata=confirmer)
        revoke = confirmations_pb2.RevokeRequest(
            context=context(), confirmation_id=issued.claims.confirmation_id
        )
        self.assertFalse(page.Revoke(revoke, timeout=PATIENCE, metadata=confirmer).was_spent)
        note.confirmation_ticket = issued.ticket
        [result] = self.execute(request(note)).results
        self.assertEqual(result.reason, types_pb2.REASON_CONFIRMATION_REVOKED)
        issue.contract_digest = "0" * 64
        with self.assertRaises(grpc.RpcError) as raised:
            page.Issue(issue, timeout=PATIENCE, metadata=confirmer)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(details(raised.exception)["ErrorInfo"].reason, "PREVIEW_STALE")


if __name__ == "__main__":
    unittest.main(verbosity=2)
