"""One gated call: first_call.py ADDRESS SECRET_FILE"""

import pathlib
import sys

import grpc
from toolgate.v1 import tool_gate_pb2, tool_gate_pb2_grpc, types_pb2

address, secret_file = sys.argv[1:]
secret = pathlib.Path(secret_file).read_text()
request = tool_gate_pb2.ExecuteRequest(
    # From your own session, never from the model.
    context=types_pb2.CallContext(
        request_id="request-1",
        user_id="user-anna",
        tenant_id="tenant-north",
        conversation_id="conversation-1",
    ),
    # What the model proposed, as it came.
    calls=[
        types_pb2.ToolCall(
            tool_call_id="call-1",
            name="search_knowledge_base",
            arguments_json='{"query": "What happens to lone surrogates?", "knowledge_base_id": "engineering"}',
        )
    ],
)
with grpc.insecure_channel(address) as channel:
    gate = tool_gate_pb2_grpc.ToolGateStub(channel)
    response = gate.Execute(request, timeout=10, metadata=[("authorization", f"Bearer {secret}")])
for result in response.results:
    # For the model: the result, or a sentence that it can act on.
    print(result.tool_call_id, types_pb2.Reason.Name(result.reason), result.result_json or result.message)
