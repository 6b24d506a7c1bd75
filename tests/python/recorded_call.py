"""What became of a call: recorded_call.py ADDRESS SECRET_FILE TOOL_CALL_ID"""

import pathlib
import sys

import grpc
from toolgate.v1 import tool_gate_pb2, tool_gate_pb2_grpc, types_pb2

address, secret_file, tool_call_id = sys.argv[1:]
metadata = [("authorization", f"Bearer {pathlib.Path(secret_file).read_text()}")]
context = types_pb2.CallContext(
    request_id="request-2",
    user_id="user-anna",
    tenant_id="tenant-north",
    conversation_id="conversation-1",
)
with grpc.insecure_channel(address) as channel:
    request = tool_gate_pb2.GetCallRequest(context=context, tool_call_id=tool_call_id)
    try:
        call = tool_gate_pb2_grpc.ToolGateStub(channel).GetCall(request, timeout=10, metadata=metadata)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.NOT_FOUND:
            raise
        sys.exit("nothing is recorded of it")
    state = "RUNNING" if call.running else types_pb2.Reason.Name(call.reason)
    print(call.tool, state, types_pb2.Effect.Name(call.effect))
