"""The PTX language: a scanner that cuts modules, a grammar for what is touched, a syntax tree that prints itself.

Both read the tokens of tokens.py: the scanner's patterns are made of their forms, and the grammar's lexer cuts them.
What a stage needs of it:

    scan.scan_module(data, name) -> Module     the items of a module (functions, variables, directives, sections) with
                                               their byte spans, by regular expressions: 35 MB in half a second
    scan.Module.statements(function)           the statements of a function's body: kind, head, guard, start, end
    prune.prune(module, [entry, ...]) -> bytes the module with only what these entries need
    parse.parse_statements(text) -> [node]     the grammar (grammar.lark) over some statements
    parse.parse_item(module, item) -> node     ... over one item of a module: a declaration, a function
    parse.parse_module(data, name) -> Module   ... over everything (1 MB/s)
    quick.parse_instruction(text) -> node      one that is as most are, of the same tokens, ten times as fast
    tree                                       the nodes; str(node) is PTX again, token for token

A PTX text is read as latin-1, one character a byte: every offset in a Module's text is a byte offset of its data.
The scanner does not check statements: what it takes for an instruction is any text up to a semicolon that begins
like one. ptxas is the judge of opcodes and modifiers, which grow twice a year; here any will do.
"""
