"""Graphs handed to compilers of others, through the hook ``turret_compile_graph``.

A plugin may take a graph as it was captured, a forward, backward or inference graph as placed, or the clusters that
placement makes of one: groups of calls placed as compiled, each a graph by itself, with the eager calls between them::

    clusters     a placed graph -> an outer graph whose clusters are submodules
    layouts      what a compiler of others is handed and has to give back: counted, checked, laid out
    assembly     callables of others, plans of Turret's own and eager calls joined into one function; stored and loaded
    ask          the hook asked for a graph, its answer checked

What nobody takes is lowered, scheduled and compiled by the stages that follow, a cluster like a whole graph.
"""
