from rmqkit.protocol.value_frames import alike as alike
from rmqkit.protocol.value_frames import cut as cut
from rmqkit.protocol.value_frames import send_header_text as send_header_text
