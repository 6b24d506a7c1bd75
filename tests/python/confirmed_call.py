"""A write that a person confirms: confirmed_call.py ADDRESS PROPOSER_SECRET_FILE CONFIRMER_SECRET_FILE"""

import pathlib
import sys

import grpc
from toolgate.v1 import confirmations_pb2, confirmations_pb2_grpc, tool_gate_pb2, tool_gate_pb2_grpc, types_pb2

address, *secret_files = sys.argv[1:]
proposer, confirmer = ([("authorization", f"Bearer {pathlib.Path(file).read_text()}")] for file in secret_files)
context = types_pb2.CallContext(
    request_id="request-1",
    user_id="user-anna",
    tenant_id="tenant-north",
    conversation_id="conversation-1",
)
call = types_pb2.ToolCall(
    tool_call_id="call-1",
    name="create_support_draft",
    arguments_json='{"question": "Are lone surrogates refused?"}',
)
with grpc.insecure_channel(address) as channel:
    gate = tool_gate_pb2_grpc.ToolGateStub(channel)
    confirmations = confirmations_pb2_grpc.ConfirmationsStub(channel)

    # What the person is shown.
    check = tool_gate_pb2.CheckRequest(context=context, calls=[call])
    verdict = gate.Check(check, timeout=10, metadata=confirmer).verdicts[0]
    if verdict.reason != types_pb2.REASON_CONFIRMATION_REQUIRED:
        sys.exit(f"nothing to confirm: {verdict.message}")
    preview = verdict.preview
    print(preview.prompt)

    # They have agreed. Who they are comes from your own session.
    issue = confirmations_pb2.IssueRequest(
        context=context,
        call=call,
        confirming_user_id="user-anna",
        arguments_hash=preview.arguments_hash,
        key_id=preview.key_id,
        contract_digest=preview.contract_digest,
    )
    call.confirmation_ticket = confirmations.Issue(issue, timeout=10, metadata=confirmer).ticket

    # The same request twice, as if the first answer had been lost: it runs once.
    for _ in range(2):
        request = tool_gate_pb2.ExecuteRequest(context=context, calls=[call])
        [result] = gate.Execute(request, timeout=10, metadata=proposer).results
        effect = result.recorded.effect if result.reason == types_pb2.REASON_CALL_REPLAYED else result.effect
        print(types_pb2.Reason.Name(result.reason), types_pb2.Effect.Name(effect), result.result_json or result.message)
