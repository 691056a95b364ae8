"""Weights on their way from a learner to its engines: one class for each route, and the exchange that both ends hold.

run makes one ``WeightExchange`` before engine and learner, and gives it to both:

    learner.publish(k) -> exchange.publish(k) -> route.send() -> workers: route.part()
                                                     |
                                                   Ticket -> engine.load(): receive() -> route.receive()
    pool.load()        -> exchange.delete_read() -> route.delete()
    late engine        -> exchange.again()       -> route.lasting.send()
"""
