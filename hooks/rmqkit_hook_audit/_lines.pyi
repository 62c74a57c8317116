from rmqkit_hook_audit.value_lines import are_alike as are_alike
from rmqkit_hook_audit.value_lines import json_lines as json_lines
