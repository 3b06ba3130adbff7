"""Plans the rounds of pairs of nodes that measure a fabric, and judges the table of their figures. The code is pure.

pair_table        the table of pairs, and the leaf of each node
circle            the circle method: rounds in which every node has another partner
round_plan        decides which pairs are measured in the next round
pair_judgement    finds the guilty part: node, rail, leaf, pair of leaves, or the scale
death_rounds      leaves out the figures that a node spoiled by going down
rail_judgement    finds the rail of a node or leaf
rail_ends         names the HCA, the switch and the port of a rail
across_judgement  judges the pairs of nodes of two leaves
fabric_text       describes a judged run in lines of text
pair_csv          reads and writes the table as CSV
leaf_file         reads the leaf of each node from a file about the topology
port_report       reads the counters of the nodes' ports, and returns their differences
heat_map          draws the table as SVG and HTML
"""
