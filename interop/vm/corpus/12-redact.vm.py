fill = {'redact': ['redacted']}


def jobs():
    yield Job('redact', 'redacted', Send('-c {}@base', 'redacted'), truth='manifest/redacted-as-received.jsonl')
